#include "graphs/arena.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("an arena counts first and allocates once") {
  arena_plan plan;
  const auto lengths = plan.add<std::int32_t>("lengths", 3);
  const auto table = plan.add<std::int64_t>("table", 100);
  CHECK(plan.bytes() == 256 + 1024);
  const activity before = activity_now();
  const arena made(std::move(plan), device_memory(test_device()));
  CHECK((activity_now() - before).allocations == 1);
  CHECK(made.view(lengths).size() == 3);
  CHECK(made.view(table).size() == 100);
  CHECK(reinterpret_cast<std::uintptr_t>(made.view(table).data()) % 256 == 0);
  CHECK(made.carvings()[1].name == "table");
  CHECK(made.carvings()[1].offset == 256);
}

TEST_CASE("memory-budget: a plan over its budget is refused with the numbers, and nothing is allocated") {
  arena_plan plan;
  plan.add<std::byte>("small", 100);
  plan.add<std::byte>("large", 10000);
  const std::size_t needed = plan.bytes();
  const activity before = activity_now();
  try {
    const arena made(std::move(plan), device_memory(test_device()), 5000);
    FAIL("a budget of 5000 bytes was enough for ", needed);
  } catch (const out_of_memory& refused) {
    CHECK(refused.bytes_needed() == needed);
    CHECK(refused.bytes_there() == 5000);
    CHECK(std::string(refused.what()).find("large 10000") != std::string::npos);
  }
  CHECK((activity_now() - before).allocations == 0);
}

TEST_CASE("a carving that does not fit in 64 bits is refused") {
  arena_plan plan;
  CHECK_THROWS_AS(plan.add<std::int64_t>("huge", std::size_t{1} << 62), invalid_argument);
}
