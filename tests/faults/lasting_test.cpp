// What lives from step to step while captures, tables and the cache around it change: docs/faults.md.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <thread>

#include "graphs/error.hpp"
#include "runtime/before_metadata.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

namespace {

/// Decodes each request `steps` times; appends what they emit.
void decode(step_executor& executor, const std::vector<request_id>& requests, int steps,
            std::vector<std::vector<std::int32_t>>& texts) {
  for (int i = 0; i < steps; ++i) {
    std::vector<step_row> rows;
    for (const request_id request : requests) rows.push_back({.request = request});
    const auto results = executor.wait(*executor.replay(step_kind::decode, rows));
    for (std::size_t r = 0; r < results.size(); ++r) texts[r].push_back(results[r].token);
  }
}

}  // namespace

TEST_CASE("recapture-live: other limits in mid-run, and every text goes on as if nothing had happened") {
  const tiny t;
  constexpr int requests = 4, steps = 6;
  for (const bool poison : {false, true}) {
    reference::llama_reference plain(t.weights);
    reference::random_integers random(test_seed());
    step_limits limits = t.limits(2, 2);
    limits.max_requests = requests;
    step_executor executor(test_device(), limits, t.model->layout(), t.model->steps(true),
                           few_buckets(limits, {.poison = poison}));
    executor.capture();
    const std::size_t captures = executor.captures().size();
    std::vector<request_id> open;
    std::vector<std::vector<std::int32_t>> texts, want;
    const auto join = [&] {
      const auto prompt =
          random_prompt(random, static_cast<int>(random.between(1, 12)), t.weights.config.vocab_size);
      open.push_back(executor.open());
      const std::vector<step_row> rows{
          {.request = open.back(), .tokens = static_cast<std::int32_t>(prompt.size()), .token_ids = prompt}};
      texts.push_back({executor.wait(*executor.replay(step_kind::extend, rows))[0].token});
      want.push_back(reference_text(plain, prompt, 4 * steps));
    };
    join();
    join();
    decode(executor, open, steps, texts);
    // more rows and drafts
    step_limits wider = limits;
    wider.max_rows = requests;
    wider.max_draft_tokens = 5;
    wider.max_step_tokens = 32;
    const executor_options buckets = few_buckets(wider);
    executor.recapture(wider, buckets.row_buckets, buckets.token_buckets);
    CHECK(executor.captures().size() > captures);
    CHECK_FALSE(executor.fault());
    join();
    join();
    decode(executor, open, steps, texts);
    // what cannot change is refused by name, and the captures stay
    for (const auto& [change, name] : {std::pair<void (*)(step_limits&), const char*>{
                                           [](step_limits& l) { l.max_context = 512; }, "max_context"},
                                       {[](step_limits& l) { l.page_size = 16; }, "page_size"},
                                       {[](step_limits& l) { l.max_requests = 9; }, "max_requests"},
                                       {[](step_limits& l) { l.in_flight = 0; }, "in_flight"}}) {
      step_limits bad = wider;
      change(bad);
      CHECK_THROWS_WITH_AS(executor.recapture(bad), doctest::Contains(name), invalid_argument);
    }
    decode(executor, open, steps, texts);
    for (std::size_t r = 0; r < open.size(); ++r) {
      want[r].resize(texts[r].size());
      CHECK(texts[r] == want[r]);
    }
  }
}

TEST_CASE("nan-warm-up: warm-up and capture with nothing live leave no fault and no NaN") {
  const tiny t;
  const float* logits = nullptr;
  int rows = 0;
  std::vector<step_definition> steps = t.model->steps(true);
  for (step_definition& step : steps)
    step.body = [&, body = step.body](const step_context& context) {
      body(context);
      logits = llama::llama_model::logits(context);
      rows = context.key.rows;
    };
  step_executor executor(test_device(), t.limits(4, 2), t.model->layout(), std::move(steps),
                         few_buckets(t.limits(4, 2), {.poison = true}));
  executor.capture();
  CHECK_FALSE(executor.fault());
  executor.run_eager(step_kind::decode, {});
  executor.stream().synchronize();
  std::vector<float> values(std::size_t(rows) * t.weights.config.vocab_size);
  executor.stream().copy(values.data(), logits, values.size() * sizeof(float));
  executor.stream().synchronize();
  int finite = 0;
  for (const float value : values) finite += std::isfinite(value) ? 1 : 0;
  CHECK(finite == static_cast<int>(values.size()));
  CHECK_FALSE(executor.fault());
}

TEST_CASE("read-fence: the table is overwritten as soon as the step has read it, while the step still runs") {
  constexpr std::int32_t wild = 0x7f7f7f7f;
  constexpr int requests = 2, start[requests] = {20, 37}, most_tokens = 64;
  constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};
  const stream at(test_device()), side(test_device());
  const device_vector<unsigned char> slow(at.ref(), std::size_t{1} << 26, 0);
  const auto take_long = [&](stream_ref on) {
    for (int i = 0; i < (test_small() || on.is_host() ? 1 : 20); ++i) on.fill(slow.data(), 1, slow.size());
  };
  // a long time before the last node that reads the table, and another after it
  struct hook {
    explicit hook(std::function<void(stream_ref)> made) { detail::before_metadata = std::move(made); }
    ~hook() { detail::before_metadata = nullptr; }
  } const slow_metadata(take_long);
  // the draft over a step's tokens makes its own table where a page is a token: then that is what reads last
  for (const bool with_draft : {false, true}) {
    CAPTURE(with_draft);
    const int page_shift = with_draft ? 0 : 2, columns = most_tokens >> page_shift;
    std::vector<std::int32_t> pages(requests * columns);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i) + 1;
    device_vector<std::int32_t> table(at.ref(), pages);
    const device_vector<std::int32_t> lengths(at.ref(), {start[0], start[1]}), last(at.ref(), requests, 3);
    std::optional<step_context> seen;
    const auto body = [&](const step_context& step) {
      seen = step;
      take_long(step.stream);
      step.stream.fill(step.next_token, 0, sizeof(std::int32_t) * step.key.rows);
    };
    const step_limits limits{.max_rows = requests,
                             .max_step_tokens = requests,
                             .max_draft_tokens = with_draft ? 1 : 0,
                             .max_requests = requests,
                             .max_context = most_tokens,
                             .page_size = 1 << page_shift,
                             .kv_pages = requests * columns + 1,
                             .vocab_size = 10,
                             .hidden_size = with_draft ? 8 : 0};
    std::vector<step_definition> steps{{.kind = step_kind::decode, .body = body}};
    if (with_draft) steps.push_back({.kind = step_kind::draft_extend, .body = body});
    executor_options options{.stream = at.ref(),
                             .requests = adopted_requests{.source = {.table = table.data(),
                                                                     .row_stride = columns,
                                                                     .requests = requests,
                                                                     .columns = columns,
                                                                     .page_shift = page_shift,
                                                                     .page_granular = true,
                                                                     .pool_pages = 0},
                                                          .seq_lens = lengths.data(),
                                                          .last_token = last.data()},
                             .read_fence = true};
    if (with_draft) options.draft = draft_shape{.layout = layout, .hidden_size = 8, .vocab_size = 10};
    step_executor executor(test_device(), limits, layout, steps, options);
    executor.capture();
    const std::vector<std::int32_t> overwritten(pages.size(), wild);
    const std::vector<step_row> rows{{.request = 0}, {.request = 1}};
    const step_round round{.kind = step_kind::decode, .rows = rows, .extend_draft = with_draft};
    // the first only names the executor: of those after it the ticket is known before they are launched
    step_ticket next = *executor.replay(round);
    executor.wait(next);
    at.synchronize();
    for (int i = 1; i <= 3; ++i) {
      ++next.sequence;
      // another thread, for on the host a step is done when its launch returns
      std::thread scheduler([&, next] {
        while (!executor.table_read(next)) std::this_thread::yield();
        side.ref().copy(table.data(), overwritten.data(), overwritten.size() * sizeof(std::int32_t));
        side.synchronize();
      });
      const step_ticket ticket = *executor.replay(round);
      scheduler.join();
      REQUIRE(ticket.sequence == next.sequence);
      for (const row_result& row : executor.wait(ticket)) CHECK(row.status == 0);
      at.synchronize();
      for (int r = 0; r < requests; ++r) {
        std::vector<std::int32_t> read((start[r] + 1 + i) >> page_shift);  // whole pages, all of them live
        at.ref().copy(read.data(), seen->page_table + r * seen->page_table_stride, 4ul * read.size());
        at.synchronize();
        CHECK(read ==
              std::vector(pages.begin() + r * columns, pages.begin() + r * columns + std::ssize(read)));
      }
      table.set(pages);
    }
    CHECK_FALSE(executor.fault());
    // warm-ups are no steps: what has read its table once has read it for good
    executor.recapture(limits);
    CHECK(executor.table_read(next));
    if (with_draft) continue;
    step_executor without(test_device(), limits, layout, steps);
    CHECK_THROWS_WITH_AS(without.table_read({}), doctest::Contains("read_fence"), invalid_argument);
  }
}
