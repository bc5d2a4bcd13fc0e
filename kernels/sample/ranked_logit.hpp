#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/sample/row_distribution.hpp"

/// A logit and its id in one number: the larger logit is larger, of equals the lower id. Any NaN is larger than all
/// logits, and 0 is less than any. So the largest of a line may be found in any order, by whoever has its logits, an
/// output head's own blocks say with `atomicMax`.
namespace stepgraph {

/// A line of which nothing is allowed; 0 is one that nobody has ranked.
constexpr std::uint64_t nothing_ranked = 1;

STEPGRAPH_HD std::uint64_t ranked_logit(float logit, int id) {
  const std::uint32_t key = std::isnan(logit) ? ~0u : ordered_key(logit);
  return std::uint64_t{key} << 32 | ~static_cast<std::uint32_t>(id);
}
STEPGRAPH_HD bool ranks_nan(std::uint64_t ranked) {
  return ranked >> 32 == ~0u;
}
STEPGRAPH_HD int id_of_ranked(std::uint64_t ranked) {
  return static_cast<int>(~static_cast<std::uint32_t>(ranked));
}

/// The token that a line's largest number says: its id, -1 for a NaN, -2 where nothing was allowed.
STEPGRAPH_HD std::int32_t token_of_ranked(std::uint64_t ranked) {
  return ranked <= nothing_ranked ? -2 : ranks_nan(ranked) ? -1 : id_of_ranked(ranked);
}

/// Lines of such numbers, as a step hands them to an output head: all 0.
struct ranked_lines {
  std::uint64_t* data = nullptr;  // [count] or null
  std::int32_t count = 0;

  template <class Team>
  STEPGRAPH_HD void clear(const Team& team) const {
    if (data)
      for (int line = team.rank(); line < count; line += team.size()) data[line] = 0;
  }
};

}  // namespace stepgraph
