// What lives from step to step while captures, tables and the cache around it change: docs/faults.md.
#include <doctest/doctest.h>

#include <cmath>

#include "graphs/error.hpp"
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
      const auto [prompt, answer] =
          ask_reference(plain, random, static_cast<int>(random.between(1, 12)), 4 * steps);
      open.push_back(executor.open());
      const std::vector<step_row> rows{
          {.request = open.back(), .tokens = static_cast<std::int32_t>(prompt.size()), .token_ids = prompt}};
      texts.push_back({executor.wait(*executor.replay(step_kind::extend, rows))[0].token});
      want.push_back(answer);
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
