// What an executor measures by the device's clock, and which gaps it says may be the host's.
#include <doctest/doctest.h>

#include "graphs/memory_resource.hpp"
#include "runtime/step_executor.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// Steps whose body only fills `load` again and again, so that one takes longer than the launch of the next.
step_executor filling(buffer& load, int fills, step_timing timing) {
  std::vector<step_definition> steps;
  for (const step_kind kind : {step_kind::decode, step_kind::extend})
    steps.push_back({.kind = kind, .variant = 0, .body = [&load, fills](const step_context& step) {
                       for (int i = 0; i < fills; ++i) step.stream.fill(load.data(), 0, load.bytes());
                       step.stream.fill(step.next_token, 0, sizeof(std::int32_t) * step.key.rows);
                     }});
  step_executor made(test_device(),
                     {.max_rows = 1,
                      .max_step_tokens = 1,
                      .max_requests = 1,
                      .max_context = 64,
                      .page_size = 16,
                      .vocab_size = 32},
                     {.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64},
                     std::move(steps), {.timing = timing});
  made.capture();
  return made;
}

}  // namespace

TEST_CASE("device times: gaps are counted by length and by whether the host was late") {
  gap_statistics gaps;
  CHECK(gaps.percentile(0.99) == 0);
  for (int i = 0; i < 99; ++i) gaps.add(2.03, false);
  gaps.add(7.5, true);
  CHECK(gaps.count == 100);
  CHECK(gaps.over_5us == 1);
  CHECK(gaps.host_late == 1);
  CHECK(gaps.host_late_over_5us == 1);
  CHECK(gaps.percentile(0.99) == doctest::Approx(2.0625));  // up to the next sixteenth
  CHECK(gaps.percentile(1) == doctest::Approx(7.5));
  gaps.add(1000, false);
  gaps.add(1.0, true);
  CHECK(gaps.percentile(1) == 1000);
  CHECK(gaps.over_5us == 2);
  CHECK(gaps.host_late == 2);
  CHECK(gaps.host_late_over_5us == 1);
}

TEST_CASE(
    "device times: the host is late for every round it launches after waiting, for none launched ahead") {
  const bool host = test_device().is_host();
  buffer load(device_memory(test_device()), host ? 64 : 64 << 20);
  step_executor executor = filling(load, host ? 1 : 40, step_timing::steps);
  const std::vector<std::int32_t> prompt{1};
  step_row row{.request = executor.open(), .tokens = 1, .token_ids = prompt};
  executor.wait(*executor.replay(step_kind::extend, {&row, 1}));
  row.token_ids = {};
  const auto launch = [&] { return *executor.replay(step_kind::decode, {&row, 1}); };
  for (int i = 0; i < 5; ++i) executor.wait(launch());
  executor.stream().synchronize();
  const step_times& times = executor.statistics().times;
  const time_statistics& decode = times.by_kind[static_cast<int>(step_kind::decode)];
  CHECK(decode.count == 5);
  CHECK(decode.smallest > 0);
  CHECK(times.between_rounds.count == 5);
  CHECK(times.between_rounds.host_late == 5);
  CHECK(times.between_rounds.smallest > 0);

  executor.reset_times();
  CHECK(executor.statistics().times.between_rounds.count == 0);
  for (int i = 0; i < 3; ++i) launch();
  executor.stream().synchronize();
  CHECK(executor.statistics().times.between_rounds.count == 2);
  CHECK(decode.count == 3);
  // a host stream has run a step by the time that its launch returns
  CHECK(times.between_rounds.host_late == (host ? 2 : 0));
}

TEST_CASE("device times: forgetting them keeps the nodes' names, and drops rounds not read yet") {
  buffer load(device_memory(test_device()), 64);
  step_executor executor = filling(load, 1, step_timing::nodes);
  const std::vector<std::int32_t> prompt{1};
  const step_row row{.request = executor.open(), .tokens = 1, .token_ids = prompt};
  executor.wait(*executor.replay(step_kind::extend, {&row, 1}));
  executor.stream().synchronize();
  executor.reset_times();
  const step_times& times = executor.statistics().times;
  const std::vector<node_time>& nodes = times.nodes[static_cast<int>(step_kind::extend)];
  REQUIRE(nodes.size() > 3);
  CHECK(std::string(nodes[1].name) == "step_prologue");
  CHECK(nodes[1].time.count == 0);
  CHECK(times.by_kind[static_cast<int>(step_kind::extend)].count == 0);
}
