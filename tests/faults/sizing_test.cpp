// That nothing is written behind the end of any buffer, whatever its step's size: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "graphs/error.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

std::string overrun(const step_executor& executor) {
  return executor.overrun().value_or("");
}

/// A tree of fan-out 8: node 0, eight children of it, and two children of each as far as `tokens` go.
text bushy_parents(int tokens) {
  text parents{-1};
  for (int i = 1; i < tokens; ++i) parents.push_back(i <= 8 ? 0 : 1 + (i - 9) / 2 % 8);
  return parents;
}

/// Drafts for it: wrong ones, but for a path of two tokens that starts at child `right`.
text bushy_drafts(const text& parents, int right, std::int32_t next, std::int32_t after, int vocab) {
  text drafts;
  for (int i = 1; i < std::ssize(parents); ++i) {
    const bool child = parents[i] == 0;
    const std::int32_t good = child ? next : after;
    const bool is_right = child ? i == right : parents[i] == right && i % 2 == 1;
    drafts.push_back(is_right ? good : (good + i) % vocab);
  }
  return drafts;
}

}  // namespace

TEST_CASE("sizing: a step of the largest size stays within its buffers") {
  const tiny t;
  constexpr int rows = 4, drafts = 5;
  reference::llama_reference plain(t.weights);
  reference::random_integers random(test_seed());
  step_executor executor = t.executor(rows, {.poison = true}, drafts);
  executor.capture();
  std::vector<request_id> requests;
  std::vector<std::vector<std::int32_t>> prompts, texts;
  for (int r = 0; r < rows; ++r) {
    auto [prompt, answer] = ask_reference(plain, random, 3, drafts + 2);
    prompts.push_back(std::move(prompt));
    texts.push_back(std::move(answer));
    requests.push_back(executor.open());
  }
  std::vector<step_row> first, verify;
  for (int r = 0; r < rows; ++r) {
    first.push_back({.request = requests[r], .tokens = 3, .token_ids = prompts[r]});
    // the right drafts: all are kept, and each row emits as many tokens as a row may
    verify.push_back(
        {.request = requests[r], .tokens = drafts + 1, .token_ids = std::span(texts[r]).subspan(1, drafts)});
  }
  executor.wait(*executor.replay(step_kind::extend, first));
  CHECK(overrun(executor) == "");
  const step_ticket ticket = *executor.replay(step_kind::target_verify, verify);
  executor.wait(ticket);
  CHECK(overrun(executor) == "");
  for (int r = 0; r < rows; ++r) {
    const auto emitted = executor.emitted(ticket, r);
    CHECK(std::vector<std::int32_t>(emitted.begin(), emitted.end()) ==
          std::vector<std::int32_t>(texts[r].begin() + 1, texts[r].end()));
  }
}

TEST_CASE("sizing: trees of fan-out 8 at the context's end, draft steps beside them: every canary lives") {
  constexpr int rows = 3, most = 24, width = most + 1, context = 96;
  const tiny_with_draft t(0.01f);
  const int vocab = t.weights.config.vocab_size;
  step_executor executor =
      t.executor(draft_setup{.rows = rows,
                             .most = most,
                             .trees = true,
                             .poison = true,
                             .max_context = context,
                             .options = {.row_buckets = bucket_policy::exactly({rows}),
                                         .token_buckets = bucket_policy::exactly({rows * width}),
                                         .draft_lengths = {2}}});
  executor.capture();
  CHECK(overrun(executor) == "");
  reference::llama_reference plain(t.weights);
  reference::random_integers random(test_seed());
  // the verify step ends at the context, one short of it, and is cut there
  const int lengths[rows]{context - width, context - width - 1, context - width + 3};
  std::vector<text> prompts, want, got(rows);
  std::vector<step_row> batch(rows);
  for (int r = 0; r < rows; ++r) {
    auto [prompt, answer] = ask_reference(plain, random, lengths[r], context - lengths[r] + 1);
    prompts.push_back(std::move(prompt));
    want.push_back(std::move(answer));
    batch[r].request = executor.open();
  }
  const auto take = [&](const step_ticket& ticket) {
    for (int r = 0; r < rows; ++r) {
      CHECK(executor.wait(ticket)[r].status == 0);
      const auto emitted = executor.emitted(ticket, r);
      got[r].insert(got[r].end(), emitted.begin(), emitted.end());
    }
    CHECK(overrun(executor) == "");
  };
  for (int done = 0; done < context; done += width) {  // all prompts at once, in chunks of the widest step
    for (int r = 0; r < rows; ++r) {
      const int count = std::clamp(lengths[r] - done, 0, width);
      batch[r].tokens = count;
      batch[r].token_ids = std::span(prompts[r]).subspan(std::min(done, lengths[r]), count);
      batch[r].following = done + count < lengths[r] ? prompts[r][done + count] : -1;
    }
    take(*executor.replay({.kind = step_kind::extend, .rows = batch, .extend_draft = true}));
  }
  const text parents = bushy_parents(width);
  const auto more = [&] {
    return std::ranges::any_of(
        got, [&](const text& each) { return each.size() < want[&each - got.data()].size(); });
  };
  for (int round = 0; more(); ++round) {
    REQUIRE(round < 3 * context);
    const bool tree = round % 3 != 1;
    std::vector<text> drafts(rows);
    for (int r = 0; r < rows; ++r) {
      const std::size_t done = got[r].size();
      const auto at = [&](std::size_t i) { return i < want[r].size() ? want[r][i] : 0; };
      drafts[r] = bushy_drafts(parents, 1 + (round + r) % 8, at(done), at(done + 1), vocab);
      batch[r] = {.request = batch[r].request, .tokens = tree ? width : 3, .token_ids = {}, .parents = {}};
      if (tree) batch[r].token_ids = drafts[r], batch[r].parents = parents;
    }
    if (tree)
      take(*executor.replay(
          {.kind = step_kind::target_verify, .rows = batch, .variant = 2, .extend_draft = true}));
    else
      take(*executor.replay(
          {.kind = step_kind::target_verify, .rows = batch, .draft_length = 2, .extend_draft = true}));
  }
  for (int r = 0; r < rows; ++r) CHECK(got[r] == want[r]);
  CHECK_FALSE(executor.fault());
}

TEST_CASE("sizing: a word written behind a buffer's end is seen, with the buffer's name") {
  constexpr int rows = 2;
  constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};
  int which = 0;
  const step_definition step{.kind = step_kind::decode,
                             .variant = 0,
                             .body =
                                 [&](const step_context& context) {
                                   context.stream.fill(context.next_token, 0, sizeof(std::int32_t) * rows);
                                   const kv_pages_view& kv = context.kv->layers.back();
                                   const auto past = [&](const void* end) {
                                     context.stream.fill(const_cast<void*>(end), 1, sizeof(std::int32_t));
                                   };
                                   if (which == 1) past(context.next_token + rows);
                                   if (which == 2) past(context.token_ids + context.key.tokens);
                                   if (which == 3)
                                     past(context.page_table + rows * context.page_table_stride);
                                   if (which == 4) past(context.scratch.data() + context.scratch.size());
                                   if (which == 5)
                                     past(static_cast<const float*>(kv.values) + kv.pages * kv.page_stride);
                                 },
                             .scratch_bytes = [](int, int) { return std::size_t{512}; }};
  const char* const names[]{"", "next_token", "token_ids", "page_table", "scratch", "kv_cache"};
  const step_limits limits{.max_rows = rows,
                           .max_step_tokens = rows,
                           .max_requests = rows,
                           .max_context = 64,
                           .page_size = 4,
                           .vocab_size = 100};
  const executor_options buckets{.row_buckets = bucket_policy::exactly({rows}),
                                 .token_buckets = bucket_policy::exactly({rows})};
  for (which = 0; which < 6; ++which) {
    executor_options options = buckets;
    options.poison = true;
    step_executor executor(test_device(), limits, layout, {step}, options);
    const text token{1};
    executor.wait(executor.run_eager(step_kind::decode, std::vector{step_row{executor.open(), 1, token}}));
    CHECK(overrun(executor) == names[which]);
  }
  const step_executor plain(test_device(), limits, layout, {step}, buckets);
  CHECK_THROWS_WITH_AS(static_cast<void>(plain.overrun()), doctest::Contains("poison"), invalid_argument);
}
