// Lengths at the edges of pages and of the context, tables that grow and shrink: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "tests/faults/adopted_table.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

constexpr int page_size = 4, drafts = 5, width = drafts + 1;

/// Rows of a context of so many tokens, which need be no multiple of the page.
step_limits limits_of(const tiny& t, int rows, int context) {
  step_limits limits = t.limits(rows, drafts);
  limits.max_step_tokens = std::max(context, rows * width);
  limits.max_context = context;
  limits.page_size = page_size;
  return limits;
}

step_executor executor_of(const tiny& t, const step_limits& limits, executor_options options = {}) {
  return step_executor(test_device(), limits, t.model->layout(), t.model->steps(true),
                       few_buckets(limits, std::move(options)));
}

}  // namespace

TEST_CASE("page-edge: verify steps that end at the context are right, those that would pass it are refused") {
  const tiny t;
  reference::llama_reference plain(t.weights);
  reference::random_integers random(test_seed());
  for (const int context : {32, 29}) {
    CAPTURE(context);
    const step_limits limits = limits_of(t, 2, context);
    step_executor executor = executor_of(t, limits, {.poison = true});
    executor.capture();
    for (const int length :
         {context - width - 1, context - width, context - width + 1, context - 1, context}) {
      CAPTURE(length);
      // as long as any of them comes: a chunk, then one by one to the context
      const auto [prompt, want] = ask_reference(plain, random, length, std::max(width, context - length) + 1);
      const request_id request = executor.open();
      text got{
          executor
              .wait(*executor.replay(step_kind::extend, std::vector{step_row{request, length, prompt}}))[0]
              .token};
      // all drafts are right, so the step fills the cache as far as it may
      const std::vector<step_row> verify{{request, width, std::span(want).subspan(1, drafts)}};
      if (length + width <= context) {
        const step_ticket ticket = *executor.replay(step_kind::target_verify, verify);
        CHECK(executor.wait(ticket)[0].length == length + width);
        const auto emitted = executor.emitted(ticket, 0);
        got.insert(got.end(), emitted.begin(), emitted.end());
        CHECK(got == text(want.begin(), want.begin() + width + 1));
      } else {
        const activity before = activity_now();
        const std::int64_t pages = executor.free_pages();
        CHECK_THROWS_WITH_AS(executor.replay(step_kind::target_verify, verify),
                             doctest::Contains("more is over max_context"), invalid_argument);
        CHECK((activity_now() - before).launches == 0);
        CHECK(executor.free_pages() == pages);
        CHECK(executor.length_bound(request) == length);
      }
      // token by token up to the context, whose last page may be a part of one, and not past it
      const std::vector<step_row> decode{{.request = request}};
      while (executor.length_bound(request) < context) {
        const auto result = executor.wait(*executor.replay(step_kind::decode, decode))[0];
        REQUIRE(result.status == 0);
        got.push_back(result.token);
      }
      CHECK(got == text(want.begin(), want.begin() + std::ssize(got)));
      CHECK_THROWS_WITH_AS(executor.replay(step_kind::decode, decode),
                           doctest::Contains("1 more is over max_context"), invalid_argument);
      CHECK_FALSE(executor.overrun());
      executor.close(request);
    }
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE("page-edge, kv-lookahead: one line's table grows to the context, then shrinks, 60 times") {
  constexpr int context = 32;
  const tiny t;
  reference::llama_reference plain(t.weights);
  reference::random_integers random(test_seed());
  step_limits limits = limits_of(t, 1, context);
  step_executor executor = executor_of(t, limits, {.poison = true});
  executor.capture();
  const std::int64_t pages = executor.free_pages();
  const int rounds = test_rounds(60);
  for (int i = 0; i < 2 * rounds; ++i) {
    // full, then one or two pages, whose owner finds the line and the pages that the long one leaves
    const int length = i % 2 == 0 ? context - 3 - static_cast<int>(random.below(page_size))
                                  : static_cast<int>(random.between(1, page_size));
    const auto [prompt, want] = ask_reference(plain, random, length, 4);
    const request_id request = executor.open();
    text got{
        executor.wait(*executor.replay(step_kind::extend, std::vector{step_row{request, length, prompt}}))[0]
            .token};
    const std::vector<step_row> decode{{.request = request}};
    for (int step = 0; step < 3; ++step)
      got.push_back(executor.wait(*executor.replay(step_kind::decode, decode))[0].token);
    CHECK(got == want);
    executor.close(request);
  }
  executor.stream().synchronize();
  executor.close(executor.open());
  const std::vector<std::int32_t> one{1};
  executor.wait(*executor.replay(step_kind::extend, std::vector{step_row{executor.open(), 1, one}}));
  CHECK(executor.free_pages() == pages - 1);
  CHECK_FALSE(executor.fault());
}

TEST_CASE("page-edge: an embedder's table grows by a step's pages and is cut to what was kept, 60 times") {
  constexpr int columns = 64, context = columns * page_size;
  const tiny t;
  const stream at(test_device());
  reference::llama_reference plain(t.weights);
  reference::random_integers random(test_seed());
  adopted_table adopted(at.ref(), columns, 1, false);
  step_limits limits = limits_of(t, adopted_table::requests, context);
  limits.kv_pages = adopted_table::requests * columns + 1;
  step_executor executor =
      executor_of(t, limits, {.stream = at.ref(), .requests = adopted.view(2), .poison = true});
  executor.capture();
  std::vector<text> prompts, want, got(adopted_table::requests);
  std::vector<step_row> rows;
  for (int r = 0; r < adopted_table::requests; ++r) {
    auto [prompt, answer] = ask_reference(plain, random, 3 + r, context - 5 - r);
    prompts.push_back(std::move(prompt));
    want.push_back(std::move(answer));
  }
  for (int r = 0; r < adopted_table::requests; ++r) rows.push_back({r, 3 + r, prompts[r]});
  adopted.give(8, page_size, true);
  const auto first = executor.wait(*executor.replay(step_kind::extend, rows));
  for (int r = 0; r < adopted_table::requests; ++r) got[r].push_back(first[r].token);
  const int rounds = test_rounds(60);
  for (int i = 0; i < rounds; ++i) {
    const text lengths = adopted.seq_lens.get();
    const int longest = std::ranges::max(lengths);
    REQUIRE(longest + width <= context);
    adopted.give(longest + width, page_size, true);
    std::vector<text> guesses;
    for (int r = 0; r < adopted_table::requests; ++r) {
      text& guess = guesses.emplace_back();
      // three in four rounds the first draft is wrong: five tokens' pages come and go
      for (int j = 0; j < drafts; ++j)
        guess.push_back((want[r][got[r].size() + j] + (i % 4 == r ? 0 : 1)) % t.weights.config.vocab_size);
    }
    for (int r = 0; r < adopted_table::requests; ++r) rows[r] = {r, width, guesses[r]};
    const step_ticket ticket = *executor.replay(step_kind::target_verify, rows);
    executor.wait(ticket);
    for (int r = 0; r < adopted_table::requests; ++r) {
      const auto emitted = executor.emitted(ticket, r);
      got[r].insert(got[r].end(), emitted.begin(), emitted.end());
    }
    adopted.give(std::ranges::max(adopted.seq_lens.get()), page_size, true);
  }
  for (int r = 0; r < adopted_table::requests; ++r) {
    CHECK(got[r] == text(want[r].begin(), want[r].begin() + std::ssize(got[r])));
    CHECK(std::ssize(got[r]) > rounds);
  }
  CHECK_FALSE(executor.fault());
}
