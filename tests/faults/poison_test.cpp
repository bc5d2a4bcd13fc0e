// Poison mode: whatever the contract calls undefined is wild, so that a body that reads it shows: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/faults/careless_sum.hpp"
#include "tests/faults/seen_memory.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

constexpr std::int32_t wild = 0x7f7f7f7f;

/// The token that a decode of one row in a bucket of four ends with, after a prompt of three, while another
/// request has come and gone. `sum` says what the body sums.
std::int32_t summed(bool poison, const std::function<void(const step_context&, careless_sum&)>& sum) {
  constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};
  constexpr int vocab = 100, rows = 4;
  std::vector<step_definition> steps;
  for (const step_kind kind : {step_kind::extend, step_kind::decode})
    steps.push_back({.kind = kind,
                     .body =
                         [&, kind](const step_context& step) {
                           careless_sum all{.vocab_size = vocab, .token = step.next_token};
                           if (kind == step_kind::decode) sum(step, all);
                           launch_rows(step.stream, all);
                         },
                     .scratch_bytes = [](int, int) { return 64; },
                     .sampled = true});
  step_executor executor(test_device(),
                         {.max_rows = rows,
                          .max_step_tokens = 16,
                          .max_requests = rows,
                          .max_context = 64,
                          .page_size = 4,
                          .vocab_size = vocab},
                         layout, steps, {.row_buckets = bucket_policy::exactly({rows}), .poison = poison});
  executor.capture();
  const std::vector<std::int32_t> prompt{1, 2, 3};
  const request_id first = executor.open({.sampling = {.top_k = 5}}), other = executor.open();
  for (const request_id each : {first, other})
    executor.wait(*executor.replay(step_kind::extend,
                                   std::vector{step_row{.request = each, .tokens = 3, .token_ids = prompt}}));
  executor.close(other);
  return executor.wait(*executor.replay(step_kind::decode, std::vector{step_row{.request = first}}))[0].token;
}

}  // namespace

TEST_CASE("poison: every buffer of the executor is filled where nothing is live, and nowhere else") {
  constexpr unsigned char mark = 0x5a;
  const tiny_with_draft t;
  constexpr int rows = 4, prompt_tokens = 19, page_size = 8;
  constexpr int pages = 3;  // of 19 tokens and one more
  for (const bool poison : {false, true}) {
    CAPTURE(poison);
    seen_memory memory;
    step_executor executor = t.executor({.rows = rows,
                                         .most = 3,
                                         .sampled = true,
                                         .trees = true,
                                         .page_size = page_size,
                                         .poison = poison,
                                         .step_tokens = 64,
                                         .options = {.memory = &memory,
                                                     .row_buckets = bucket_policy::exactly({rows}),
                                                     .token_buckets = bucket_policy::exactly({64})}});
    executor.capture();
    reference::random_integers random(test_seed());
    const auto prompt = random_prompt(random, prompt_tokens, 509);
    const sampling_settings sampling{.temperature = 0.7f, .seed = 3};
    const auto extend = [&](request_id request) {
      const std::vector<step_row> row{{.request = request, .tokens = prompt_tokens, .token_ids = prompt}};
      executor.wait(*executor.replay(
          {.kind = step_kind::extend, .rows = row, .variant = 1, .extend_draft = true, .draft_variant = 1}));
    };
    const request_id open = executor.open({.sampling = sampling}),
                     closed = executor.open({.sampling = sampling});
    REQUIRE(open == 0);
    extend(closed);
    extend(open);
    executor.close(closed);
    // everything of the steps' block is undefined now, but for what a first draft was drawn from
    const int float_bytes = sizeof(float), vocab = 509 * float_bytes;
    const std::pair<const char*, int> live_parts[] = {
        // bytes of line 0; the other lines are nobody's, and one is for dead rows
        {"request_pages", pages * 4},
        {"request_seq_lens", 4},
        {"request_last_token", 4},
        {"request_sampling", sizeof(sampling_settings)},
        {"request_capacity", 4},
        {"request_finished", 4},
        {"request_budget", 4},
        {"request_first_draft", 4},
        {"request_first_ranked", 8},
        {"request_first_drawn", 4},
        {"draft_first_hidden", t.weights.config.hidden_size * float_bytes},
        {"draft_probabilities", vocab},
        // set once, or by poison itself; of the caches other tests say what is filled
        {"fault_taken", INT32_MAX},
        {"end_ids", INT32_MAX},
        {"kv_planes", INT32_MAX},
        {"live_pages", INT32_MAX},
        {"page_live_tokens", INT32_MAX},
        {"kv_cache", INT32_MAX},
        {"draft_kv_cache", INT32_MAX}};
    const stream_ref at = executor.stream();
    const auto live_bytes = [&](const carving_info& carving) -> std::size_t {
      for (const auto& [name, bytes] : live_parts)
        if (carving.name == name) return std::min<std::size_t>(bytes, carving.bytes);
      CHECK_MESSAGE(memory.of_step(carving), "a carving that this test does not know: ", carving.name);
      return 0;
    };
    for (const carving_info& carving : executor.carvings()) {
      const std::size_t live = live_bytes(carving);
      if (carving.bytes > live) at.fill(memory.at(carving) + live, mark, carving.bytes - live);
    }
    // one row in a bucket of four
    const std::vector<step_row> row{{.request = open, .tokens = 4}};
    const step_ticket ticket = *executor.replay({.kind = step_kind::target_verify,
                                                 .rows = row,
                                                 .variant = 1,
                                                 .draft_length = 3,
                                                 .extend_draft = true,
                                                 .draft_variant = 1});
    const row_result result = executor.wait(ticket)[0];
    CHECK(result.status == 0);
    CHECK(result.length >= prompt_tokens + 1);
    at.synchronize();
    std::string left;
    for (const carving_info& carving : executor.carvings()) {
      const std::size_t live = live_bytes(carving);
      if (carving.bytes <= live) continue;
      std::vector<unsigned char> bytes(carving.bytes - live);
      at.copy(bytes.data(), memory.at(carving) + live, bytes.size());
      at.synchronize();
      std::size_t marked = 0;
      for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4)
        marked += std::all_of(bytes.begin() + i, bytes.begin() + i + 4,
                              [](unsigned char byte) { return byte == mark; });
      if (poison) CHECK_MESSAGE(marked == 0, marked, " words of ", carving.name, " are as they were");
      if (marked > 0) left += carving.name + " ";
    }
    if (poison) continue;
    // else most is as it was
    for (const char* name : {"staging", "draft_probabilities", "request_pages", "request_seq_lens",
                             "request_sampling", "draft_first_hidden", "page_table"})
      CHECK_MESSAGE(left.find(name) != std::string::npos, std::string(name));
  }
}

TEST_CASE("poison: a body that sums what is not live goes unnoticed without, and gives itself away with") {
  struct sloppy {
    const char* what;
    const std::int32_t* (*from)(const step_context&);
    std::int64_t (*stride)(const step_context&);
    int live, all;  // numbers, as the contract has it and as the body
  };
  const auto dense = [](const step_context&) -> std::int64_t { return 1; };
  const auto table = [](const step_context& step) { return step.page_table; };
  for (const sloppy& each :
       {sloppy{"a page table's tail", table, dense, 1, 16},
        sloppy{"a dead row's pages", table, [](const step_context& step) { return step.page_table_stride; },
               1, 4},
        sloppy{"a closed request's settings",
               [](const step_context& step) { return &step.sampling.settings->top_k; },
               [](const step_context&) -> std::int64_t { return sizeof(sampling_settings) / 4; }, 1, 4},
        sloppy{"scratch that it has not written",
               [](const step_context& step) {
                 return reinterpret_cast<const std::int32_t*>(step.scratch.data());
               },
               dense, 0, 16}}) {
    CAPTURE(each.what);
    const auto sum_of = [&](int sloppy::*count) {
      return [&each, count](const step_context& step, careless_sum& sum) {
        sum.numbers = each.from(step);
        sum.stride = each.stride(step);
        sum.count = each.*count;
      };
    };
    const std::int32_t right = summed(false, sum_of(&sloppy::live));
    CHECK(right >= 0);
    CHECK(summed(true, sum_of(&sloppy::live)) == right);
    CHECK(summed(false, sum_of(&sloppy::all)) == right);
    CHECK(summed(true, sum_of(&sloppy::all)) == -1);
  }
}

TEST_CASE("poison: attention over more than a row has meets a NaN or a wild page") {
  constexpr int prompt_tokens = 11, page_size = 8;  // a decode more: the second page has room
  const tiny t;
  reference::random_integers random(test_seed());
  const auto prompt = random_prompt(random, prompt_tokens, t.weights.config.vocab_size);
  struct outcome {
    row_result row;
    std::optional<fault_record> fault;
  };
  const auto decode = [&](bool poison, int too_many) {
    const stream at(test_device());
    const device_vector<std::int32_t> longer(at.ref(), {prompt_tokens + 1 + too_many});
    std::vector<step_definition> steps = t.model->steps();
    for (step_definition& step : steps)
      if (step.kind == step_kind::decode)
        step.body = [&, body = step.body](const step_context& context) {
          step_context told = context;
          told.causal_length = told.cache_seqlens = longer.data();
          body(told);
        };
    const step_limits limits = t.limits(1);
    step_executor executor(test_device(), limits, t.model->layout(), steps,
                           few_buckets(limits, {.poison = poison}));
    executor.capture();
    const request_id request = executor.open();
    executor.wait(*executor.replay(
        step_kind::extend,
        std::vector{step_row{.request = request, .tokens = prompt_tokens, .token_ids = prompt}}));
    executor.reset_fault();  // of the warm-up, which had not a token
    const row_result row =
        executor.wait(*executor.replay(step_kind::decode, std::vector{step_row{.request = request}}))[0];
    return outcome{row, executor.fault()};
  };
  for (const bool poison : {false, true}) {
    CAPTURE(poison);
    const outcome right = decode(poison, 0);
    CHECK(right.row.status == 0);
    CHECK_FALSE(right.fault);
    CHECK(right.row.token == decode(false, 0).row.token);
  }
  for (const int too_many : {1, page_size}) {
    CAPTURE(too_many);
    const outcome unnoticed = decode(false, too_many), caught = decode(true, too_many);
    CHECK(unnoticed.row.status == 0);
    CHECK_FALSE(unnoticed.fault);
    CHECK(caught.row.status != 0);
    REQUIRE(caught.fault);
    if (too_many == page_size) CHECK(caught.fault->value == wild);
  }
}
