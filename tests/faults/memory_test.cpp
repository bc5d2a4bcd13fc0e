// What a capture leaves behind where memory runs out: docs/faults.md.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "graphs/error.hpp"
#include "kernels/sample/greedy_sample.hpp"
#include "runtime/step_executor.hpp"
#include "tests/allocation_counter.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

/// Three buckets of a step of `kernels` kernels and two fills, that emits the token 0x01010101.
step_executor executor_of(int kernels, std::size_t budget = arena::no_budget) {
  constexpr int vocab_size = 64;
  const auto body = [kernels](const step_context& step) {
    step.stream.fill(step.scratch.data(), 0, step.scratch.size());
    for (int i = 0; i < kernels; ++i)
      greedy_sample(step.stream, {.logits = reinterpret_cast<const float*>(step.scratch.data()),
                                  .logits_stride = vocab_size,
                                  .rows = step.key.rows,
                                  .vocab_size = vocab_size,
                                  .live_rows = step.live_rows,
                                  .query_counts = step.query_counts,
                                  .next_token = step.next_token,
                                  .faults = step.faults});
    step.stream.fill(step.next_token, 1, sizeof(std::int32_t) * step.key.rows);
  };
  return step_executor(test_device(),
                       {.max_rows = 4,
                        .max_step_tokens = 8,
                        .max_requests = 4,
                        .max_context = 64,
                        .page_size = 4,
                        .vocab_size = vocab_size},
                       layout,
                       {{.kind = step_kind::decode,
                         .variant = 0,
                         .body = body,
                         .scratch_bytes = [](int rows, int) { return rows * vocab_size * sizeof(float); }}},
                       {.memory_budget = budget});
}

std::int32_t emitted_by(step_executor& executor, bool eager = false) {
  const request_id request = executor.open();
  const std::vector<std::int32_t> token{1};
  const std::vector<step_row> rows{{.request = request, .tokens = 1, .token_ids = token}};
  const step_ticket ticket =
      eager ? executor.run_eager(step_kind::decode, rows) : *executor.replay(step_kind::decode, rows);
  const std::int32_t emitted = executor.wait(ticket)[0].token;
  executor.close(request);
  return emitted;
}

std::size_t carved_by(const step_executor& executor) {
  std::size_t end = 0;
  for (const carving_info& each : executor.carvings()) end = std::max(end, each.offset + each.bytes);
  return (end + 255) / 256 * 256;
}

/// True if nobody else uses the device, so that its free memory says something.
bool alone() {
  return std::getenv("STEPGRAPH_TEST_ALONE") != nullptr;
}

/// Kernels, so many that an executable takes memory of its own.
int large() {
  return test_small() ? 50 : 8000;
}

}  // namespace

TEST_CASE("memory-budget: wherever a capture runs out of host memory, it leaves nothing behind") {
  std::uint64_t allocations = 0;
  for (int i = 0; i < 2; ++i) {  // the first one makes what lives as long as the process
    step_executor whole = executor_of(1);
    const std::uint64_t before = host_allocations();
    whole.capture();
    allocations = host_allocations() - before;
  }
  REQUIRE(allocations > 20);
  step_executor executor = executor_of(1);
  const auto captures_without = [&](std::uint64_t number) {
    fail_host_allocation(number);
    bool whole = true;
    try {
      executor.capture();
    } catch (const std::exception&) {
      whole = false;
    }
    fail_host_allocation(0);
    return whole;
  };
  REQUIRE_FALSE(captures_without(allocations));  // the last one: lists have grown as far as they do
  const std::int64_t held = live_host_allocations();
  int failures = 0;
  for (std::uint64_t number = 1; !captures_without(number); number += test_small() ? 7 : 1) {
    ++failures;
    REQUIRE(executor.captures().empty());
    REQUIRE(executor.statistics().buckets.empty());
    REQUIRE(live_host_allocations() == held);
    REQUIRE_FALSE(executor.stream().is_capturing());
    REQUIRE(failures <= static_cast<int>(allocations));
  }
  CHECK(failures > 2);
  CHECK(executor.captures().size() == 3);
  CHECK(emitted_by(executor) == 0x01010101);
}

TEST_CASE("memory-budget: a recapture that runs out of host memory before it captures changes nothing") {
  step_executor executor = executor_of(1);
  executor.capture();
  const std::size_t carved = carved_by(executor);
  step_limits other = executor.limits();
  other.max_rows = 2;
  other.in_flight += 3;
  int failures = 0;
  for (std::uint64_t number = 1;; ++number) {
    fail_host_allocation(number);
    bool whole = true;
    try {
      executor.recapture(other);
    } catch (const std::exception&) {
      whole = false;
    }
    fail_host_allocation(0);
    if (whole || executor.captures().empty()) break;  // it had begun to capture
    ++failures;
    REQUIRE(executor.captures().size() == 3);
    REQUIRE(executor.limits().max_rows == 4);
    REQUIRE(executor.limits().in_flight == other.in_flight - 3);
    REQUIRE(carved_by(executor) == carved);
    for (int i = 0; i < 2 * other.in_flight; ++i) REQUIRE(emitted_by(executor) == 0x01010101);
    REQUIRE(failures < 10000);
  }
  CHECK(failures > 20);
  executor.capture();
  CHECK(executor.limits().max_rows == 2);
  CHECK(executor.captures().size() == 2);
  for (int i = 0; i < 2 * other.in_flight; ++i) REQUIRE(emitted_by(executor) == 0x01010101);
}

TEST_CASE(
    "memory-budget: a recapture counts the blocks and executables that are held until the new block is "
    "there") {
  if (!test_device().is_host()) return;  // what executables take is the driver's to say
  step_executor free = executor_of(1);
  const std::size_t before = carved_by(free);
  step_limits wider = free.limits();
  wider.max_step_tokens = 64;
  free.recapture(wider);
  std::size_t block = 0;  // of the step: what lasts comes behind it
  for (const carving_info& each : free.carvings())
    if (each.name == "fault_taken") block = each.offset;
  REQUIRE(block > 0);
  step_executor tight = executor_of(1, before + block - 1);
  tight.capture();
  CHECK_THROWS_AS(tight.recapture(wider), out_of_memory);
  CHECK(tight.captures().size() == 3);
  CHECK(emitted_by(tight) == 0x01010101);
  step_executor exact = executor_of(1, before + block);
  exact.capture();
  CHECK(exact.recapture(wider).size() == 3);
  CHECK(emitted_by(exact) == 0x01010101);
}

TEST_CASE("memory-budget: what executables take counts, and a capture over the budget is dropped") {
  const std::size_t carved = carved_by(executor_of(1));
  // the host's executables take no device memory, so that exactly what is carved is enough
  if (test_device().is_host()) {
    step_executor exact = executor_of(1, carved);
    CHECK(exact.capture().size() == 3);
    CHECK_THROWS_AS(executor_of(1, carved - 1), out_of_memory);
    return;
  }
  if (test_small()) return;  // small executables find room in what the driver holds
  // the driver keeps what executables took for the next ones: until it has to take more
  bool refused = false;
  for (int kernels = large(); !refused && kernels <= 16 * large(); kernels *= 2) {
    step_executor executor = executor_of(kernels, carved + 1);
    try {
      executor.capture();
    } catch (const out_of_memory& why) {
      refused = true;
      CHECK(why.bytes_there() == carved + 1);
      CHECK(why.bytes_needed() > carved + 1);
      CHECK(std::string(why.what()).find("capture of decode, ") != std::string::npos);
      CHECK(executor.captures().empty());
      CHECK(emitted_by(executor, true) == 0x01010101);
    }
  }
  CHECK(refused);
}

TEST_CASE("memory-budget: a GPU without memory refuses a capture, which works once there is some again" *
          doctest::skip(!alone())) {
  if (test_device().is_host()) return;
  step_executor executor = executor_of(large());
  CHECK(emitted_by(executor, true) == 0x01010101);  // loads what the driver loads at the first use
  std::size_t before = 0;
  for (int i = 0; i < 2; ++i) {
    std::vector<buffer> everything;
    for (std::size_t bytes = std::size_t{1} << 36; bytes >= 1 << 12;) try {
        everything.emplace_back(device_memory(test_device()), bytes);
      } catch (const out_of_memory&) {
        bytes /= 4;
      }
    std::string why;
    try {
      executor.capture();
    } catch (const out_of_memory& refused) {
      why = refused.what();
      CHECK(refused.bytes_there() < std::size_t{1} << 22);
    }
    std::printf("with the GPU's memory full: %s\n", why.c_str());
    CHECK(why.find("capture of decode, 4 rows") != std::string::npos);
    CHECK(executor.captures().empty());
    everything.clear();
    const std::size_t now = test_device().free_bytes();
    if (i > 0) CHECK(now == before);
    before = now;
  }
  CHECK(executor.capture().size() == 3);
  CHECK(emitted_by(executor) == 0x01010101);
}
