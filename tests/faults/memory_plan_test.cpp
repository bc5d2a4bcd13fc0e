// What an executor takes is known before it is made, carving by carving: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/faults/adopted_table.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

/// Arguments of an executor.
struct arguments {
  step_limits limits;
  std::vector<step_definition> steps;
  executor_options options;
};

/// Plans, makes the executor, and compares; then has it made with one byte less.
void check_plan(const kv_layout& layout, const arguments& all) {
  const activity before = activity_now();
  const arena_plan plan =
      step_executor::plan_memory(test_device(), all.limits, layout, all.steps, all.options);
  const activity did = activity_now() - before;
  CHECK(did.allocations == 0);
  CHECK(did.synchronizations == 0);

  executor_options exactly = all.options;
  exactly.memory_budget = plan.bytes();
  const step_executor executor(test_device(), all.limits, layout, all.steps, exactly);
  const auto made = executor.carvings();
  REQUIRE(made.size() == plan.carvings().size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    CHECK(made[i].name == plan.carvings()[i].name);
    CHECK(made[i].offset == plan.carvings()[i].offset);
    CHECK(made[i].bytes == plan.carvings()[i].bytes);
  }
  exactly.memory_budget -= 1;
  try {
    const step_executor refused(test_device(), all.limits, layout, all.steps, exactly);
    FAIL("made of less than it needs");
  } catch (const out_of_memory& refused) {
    CHECK(refused.bytes_needed() == plan.bytes());
  }
}

}  // namespace

TEST_CASE("memory-budget: an executor's plan, carving by carving, is what is then allocated") {
  const tiny_with_draft t;
  const kv_layout layout = t.model->layout();
  arguments plain{t.limits(3, 4), t.model->steps(true), {}};
  check_plan(layout, plain);
  const auto bytes_of = [&](const arguments& all, const char* name) {
    const arena_plan plan =
        step_executor::plan_memory(test_device(), all.limits, layout, all.steps, all.options);
    const auto found = std::ranges::find(plan.carvings(), name, &carving_info::name);
    return found == plan.carvings().end() ? 0 : found->bytes;
  };
  const step_limits& limits = plain.limits;
  const auto pages = limits.max_requests * limits.max_context / limits.page_size + 1;
  CHECK(bytes_of(plain, "kv_cache") ==
        std::size_t(2 * layout.layers * pages * limits.page_size * layout.kv_heads * layout.head_size) *
            size_of(layout.type));
  CHECK(bytes_of(plain, "draft_kv_cache") == 0);

  arguments poisoned = plain;
  poisoned.options.poison = true;
  check_plan(layout, poisoned);

  // everything that there is: trees, sampled steps, a draft, ends of texts, buckets of one's own
  arguments whole{
      limits, t.model->steps(llama::step_choice{.verify = true, .sampled = true, .trees = true}), {}};
  whole.limits.hidden_size = t.weights.config.hidden_size;
  whole.limits.kv_pages = 40;
  for (step_definition& step : t.draft.steps()) whole.steps.push_back(std::move(step));
  whole.options = {.row_buckets = bucket_policy::exactly({3, 5}),
                   .token_buckets = bucket_policy::exactly({7, 90}),
                   .draft = t.draft.shape(),
                   .finish = finish_options{{1, 2, 3}}};
  check_plan(layout, whole);
  CHECK(bytes_of(whole, "draft_kv_cache") > 0);

  // what is adopted is not carved
  const stream at(test_device());
  adopted_table table(at, limits.max_context / limits.page_size, 3, true);
  arguments adopted = plain;
  adopted.limits.max_requests = adopted_table::requests;
  adopted.options.stream = at.ref();
  adopted.options.requests = table.view(3);
  check_plan(layout, adopted);
  CHECK(bytes_of(adopted, "request_pages") == 0);

  plain.limits.page_size = 12;
  CHECK_THROWS_WITH_AS(
      static_cast<void>(step_executor::plan_memory(test_device(), plain.limits, layout, plain.steps)),
      doctest::Contains("page_size must be a power of two"), invalid_argument);
}
