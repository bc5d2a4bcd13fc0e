#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/sample/row_distribution.hpp"
#include "kernels/settled.hpp"

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
  std::int32_t token = ranks_nan(ranked) ? -1 : id_of_ranked(ranked);
  if (ranked <= nothing_ranked) token = -2;
  return token;
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

  /// What was left for a token, not looked at yet: several are read before the first of them is chosen.
  struct left {
    std::int32_t plain;
    std::uint64_t number;
  };
  /// Of token `i`, or zeros where it is not `there`.
  STEPGRAPH_HD left read(std::int64_t i, bool there = true) const {
    return {fetch_if(there, ids, i), fetch_if(there && ranked, ranked, i)};
  }
  /// Of several, by `read`: their tokens.
  template <int count>
  STEPGRAPH_HD void choose(const left (&of)[count], std::int32_t (&tokens)[count]) const {
    bool ranks[count];
    STEPGRAPH_UNROLL
    for (int i = 0; i < count; ++i) {
      ranks[i] = of[i].number != 0;
      tokens[i] = ranks[i] ? token_of_ranked(of[i].number) : of[i].plain;
    }
    if (!target_ids) return;
    std::int32_t mapped[count];
    STEPGRAPH_UNROLL
    for (int i = 0; i < count; ++i) mapped[i] = fetch_if(ranks[i] && tokens[i] >= 0, target_ids, tokens[i]);
    STEPGRAPH_UNROLL
    for (int i = 0; i < count; ++i)
      if (ranks[i] && tokens[i] >= 0) tokens[i] = mapped[i];
  }

  STEPGRAPH_HD std::int32_t operator[](std::int64_t i) const {
    const left of[]{read(i)};
    std::int32_t tokens[1];
    choose(of, tokens);
    return tokens[0];
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
    if (!data) return;
    STEPGRAPH_NO_UNROLL
    for (int line = team.rank(); line < count; line += team.size()) data[line] = 0;
  }
};

}  // namespace stepgraph
