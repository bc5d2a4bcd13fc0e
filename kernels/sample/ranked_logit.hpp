#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/guard.hpp"
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

/// Reports a line whose number says no token, as `greedy_sample` does.
STEPGRAPH_HD void report_unranked(const fault_sink& faults, int row, std::uint64_t ranked) {
  if (ranks_nan(ranked))
    faults.report(op_id::greedy_sample, row, row_status::nan_logits, id_of_ranked(ranked));
  else
    faults.report(op_id::greedy_sample, row, row_status::no_allowed_token, -1);
}

/// Tokens as bodies leave them: plain, or as an output head has ranked them, which stands where it is not 0.
struct chosen_tokens {
  const std::int32_t* ids = nullptr;
  const std::uint64_t* ranked = nullptr;     // or null
  const std::int32_t* target_ids = nullptr;  // token of each id that was ranked, or null: the id itself

  // note: both are read before one is chosen, so that one latency covers them
  STEPGRAPH_HD std::int32_t operator[](std::int64_t i) const {
    const std::int32_t plain = ids[i];
    const std::uint64_t number = ranked ? ranked[i] : 0;
    if (number == 0) return plain;
    const std::int32_t id = token_of_ranked(number);
    return id >= 0 && target_ids ? target_ids[id] : id;
  }
};

/// What a draft's step is fed where the step before it has ranked its tokens, for a body's own kernel.
struct ranked_feed {
  const std::uint64_t* ranked = nullptr;     // [rows]; null: plain tokens are fed
  const std::int32_t* target_ids = nullptr;  // as above

  /// The row's token of the target, 0 for none.
  STEPGRAPH_HD std::int32_t operator[](std::int64_t row) const {
    const std::int32_t id = token_of_ranked(ranked[row]);
    return id < 0 ? 0 : target_ids ? target_ids[id] : id;
  }
};

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
