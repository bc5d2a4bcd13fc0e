// What it takes to ask for logprobs, and what choose_tokens refuses.
#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "tests/runtime/told_steps.hpp"

using namespace stepgraph;

TEST_CASE(
    "logprobs cost a node of a greedy step and none of a sampled one; not asked for, nothing is written") {
  told_steps with({.rows = 2, .drafts = 2}), without({.rows = 2, .drafts = 2, .logprobs = false});
  const auto asked = with.executor.capture(), plain = without.executor.capture();
  REQUIRE(asked.size() == plain.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    REQUIRE(asked[i].key == plain[i].key);
    CHECK(asked[i].nodes == plain[i].nodes + (asked[i].key.variant & told_steps::sampled ? 0 : 1));
  }
  told_steps::text prompt{1, 2};
  const auto got = without.run(step_kind::extend, told_steps::greedy,
                               {{without.executor.open(), &prompt, {{-1}, {prompt.back()}}}});
  for (const float value : got.logprobs) CHECK(value == told_steps::unwritten);
  CHECK(got.emitted[0].size() == 1);
}

TEST_CASE("choose_tokens refuses by name what a body may not ask for") {
  const told_steps told({.rows = 2, .drafts = 2, .masked = false, .logprobs = false});
  const std::int32_t ids = 0;
  float number = 0;
  std::uint32_t word = 0;
  const auto refused = [&](step_kind kind, bool sampled, head_logits head, const char* why) {
    const step_limits limits{.max_rows = 2,
                             .max_step_tokens = 8,
                             .max_draft_tokens = 2,
                             .max_requests = 2,
                             .max_context = 64,
                             .page_size = 4,
                             .vocab_size = 37,
                             .hidden_size = 1};
    std::vector<step_definition> steps;
    for (const step_kind each : {step_kind::decode, step_kind::target_verify, step_kind::draft_extend})
      steps.push_back({.kind = each,
                       .body =
                           [=, &told](const step_context& step) {
                             const head_logits good = told.head();
                             choose_tokens(step, step.key.kind == kind ? head : good);
                           },
                       .sampled = sampled});
    step_executor executor(
        test_device(), limits, told_steps::layout, std::move(steps),
        {.row_buckets = bucket_policy::exactly({2}),
         .token_buckets = bucket_policy::exactly({8}),
         .draft = draft_shape{.layout = told_steps::layout, .hidden_size = 1, .vocab_size = 37}});
    CHECK_THROWS_WITH_AS(executor.capture(), doctest::Contains(why), error);
  };
  const head_logits good = told.head();
  for (const step_kind kind : {step_kind::decode, step_kind::target_verify}) {
    head_logits bad = good;
    bad.ranked = true;
    refused(kind, true, bad, "head_logits::ranked is of greedy steps");
    bad.allowed = {.words = &word, .stride = 2};
    refused(kind, false, bad, "head_logits::ranked with head_logits::allowed");
    bad.allowed = {};
    bad.unfiltered_logprobs = &number;
    refused(kind, false, bad, "head_logits::ranked with logprobs");
    bad.ranked = false;
    bad.target_ids = &ids;
    refused(kind, false, bad, "logprobs are of the tokens that a target step emits");
    bad = good;
    bad.data = nullptr;
    for (const bool sampled : {false, true}) refused(kind, sampled, bad, "logits is null");
    bad = good;
    bad.allowed = {.words = &word, .stride = 1};
    for (const bool sampled : {false, true})
      refused(kind, sampled, bad, "allowed.stride 1 is less than the 2 words of the vocabulary");
  }
  head_logits bad = good;
  bad.logprobs = &number;
  refused(step_kind::draft_extend, false, bad, "logprobs are of the tokens that a target step emits");
}
