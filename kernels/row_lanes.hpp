#pragma once

#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// A few threads of a team beside each other for a row, each with some of its tokens: what a thread does for all of a
/// row's tokens one after the other is code that a node runs through once, so that fetching it takes longer than
/// running it. On the host a row is one thread's.
template <class Team>
struct row_lanes {
  static constexpr int count = Team::size() >= 4 ? 4 : 1;
  static constexpr int rows = Team::size() / count;  // of a team at once

  STEPGRAPH_HD static int lane(const Team& team) { return team.rank() % count; }
  STEPGRAPH_HD static int row(const Team& team) { return team.rank() / count; }

  /// The least `value` of a row's threads; every thread of the team calls it.
  STEPGRAPH_HD static std::int32_t least(std::int32_t value) {
#if defined(__CUDA_ARCH__)
    STEPGRAPH_UNROLL
    for (int step = 1; step < count; step *= 2) {
      const std::int32_t other = __shfl_xor_sync(~0u, value, step);
      value = other < value ? other : value;
    }
#endif
    return value;
  }
};

}  // namespace stepgraph
