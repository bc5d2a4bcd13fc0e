#include <doctest/doctest.h>

#include "kernels/attention/query_tile_costs.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("the KV tiles before a query tile are the sum of what each earlier one sees") {
  reference::random_integers random(test_seed());
  for (int round = 0; round < 2000; ++round) {
    const auto group = static_cast<std::uint32_t>(random.between(1, 20));
    const std::uint32_t rows = 16u << random.below(3);
    const auto base = static_cast<std::uint32_t>(random.one_in(4) ? 0 : random.between(0, 1 << 20));
    const detail::query_tile_costs costs{rows, group, base, 64};
    CAPTURE(group);
    CAPTURE(rows);
    CAPTURE(base);
    std::uint32_t sum = 0;
    const auto count = random.between(1, 300);
    for (std::uint32_t i = 0; i < count; ++i) {
      REQUIRE(costs.before(i) == sum);
      // the last token of the tile, and what it sees, itself included
      const std::uint32_t last = ((i + 1) * rows - 1) / group;
      sum += (base + last + 1 + 63) / 64;
    }
    REQUIRE(costs.before(static_cast<std::uint32_t>(count)) == sum);
  }
}
