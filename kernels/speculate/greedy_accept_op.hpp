#pragma once

#include "kernels/sample/ranked_logit.hpp"
#include "kernels/speculate/greedy_accept.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `greedy_accept`: a thread a row.
struct greedy_accept_op {
  static constexpr const char* name = "greedy_accept";
  static constexpr int tile_columns = 0;  // vectors only
  greedy_accept_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(p.verify.live_rows, rows());
    for (int row = team.rank(); row < rows(); row += team.size()) walk(row, row < live);
  }

  /// One row, by one thread.
  STEPGRAPH_HD void walk(int row, bool live) const {
    const int count = p.verify.count(row);
    if (count == 0 && !guard_off("ragged-zero")) return p.result.none(row, live);
    const int first = p.verify.cu_seqlens_q[row];
    int current = 0, accepted = 0;
    std::int32_t best = argmax(first);
    // parents come before their children, so one pass meets the path in order; a few nodes are read before the
    // first of them is looked at, so that one latency covers them
    constexpr int together = 8;
    for (int base = 1; base < count && (base == 1 || best >= 0); base += together) {
      std::int32_t above[together], drafted[together], after[together];
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        if (base + i >= count) continue;
        above[i] = p.verify.parent(first, base + i);
        drafted[i] = p.verify.token_ids[first + base + i];
        after[i] = argmax(first + base + i);
      }
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        if (base + i >= count || best < 0 || above[i] != current || drafted[i] != best) continue;
        p.result.keep(row, accepted++, base + i, best);
        current = base + i;
        best = after[i];
      }
    }
    if (best < 0)
      p.faults.report(op_id::greedy_accept, row,
                      best == -1 ? row_status::nan_logits : row_status::no_allowed_token, current);
    p.result.finish(row, accepted, best);
  }

 private:
  STEPGRAPH_HD std::int32_t argmax(int token) const {
    return chosen_tokens{.ids = p.argmax, .ranked = p.ranked}[token];
  }
};

}  // namespace stepgraph
