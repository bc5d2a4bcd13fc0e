#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

namespace stepgraph::detail {

/// Sum of floor((a i + b) / m) over 0 <= i < n, by Euclid's steps on (a, m); all of it below 2^32.
STEPGRAPH_HD std::uint32_t floor_sum(std::uint32_t n, std::uint32_t m, std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  while (true) {
    if (a >= m) {
      sum += static_cast<std::uint32_t>(std::uint64_t{n} * (n - 1) / 2) * (a / m);
      a %= m;
    }
    if (b >= m) {
      sum += n * (b / m);
      b %= m;
    }
    const std::uint32_t most = a * n + b;
    if (n == 0 || most < m) return sum;
    n = most / m;
    b = most % m;
    const std::uint32_t swapped = m;
    m = a;
    a = swapped;
  }
}

/// KV tiles of a row's query tiles under causality: query tile i, of `query_rows` packed rows (`group` a
/// token), sees ceil((base + (i + 1) * query_rows / group) / kv_tokens) of them.
struct query_tile_costs {
  std::uint32_t query_rows;
  std::uint32_t group;
  std::uint32_t base;       // tokens before the step
  std::uint32_t kv_tokens;  // of a tile

  /// Of query tile `i`.
  STEPGRAPH_HD std::uint32_t of(std::uint32_t i) const {
    const std::uint32_t m = kv_tokens * group;
    return (i * query_rows + base * group + query_rows + m - 1) / m;
  }

  /// Of the first `count` query tiles.
  STEPGRAPH_HD std::uint32_t before(std::uint32_t count) const {
    const std::uint32_t m = kv_tokens * group;
    return floor_sum(count, m, query_rows, base * group + query_rows + m - 1);
  }
};

}  // namespace stepgraph::detail
