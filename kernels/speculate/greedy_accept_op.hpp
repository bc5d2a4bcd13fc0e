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
    for (int row = team.rank(); row < rows(); row += team.size()) {
      emitted_tokens tokens{};
      p.result.store(row, walk(row, row < live, p.verify.range(row), tokens).counts);
    }
  }

  /// What a walk came to: what ended the row, if something did.
  struct outcome {
    accept_counts counts;
    row_status status;
  };

  /// One row, by one thread; `tokens` takes the first that it emits, a chain's alone.
  STEPGRAPH_HD outcome walk(int row, bool live, const verify_view::token_range& of,
                            emitted_tokens& tokens) const {
    const int count = live ? p.verify.count(of) : 0;
    if (count == 0 && !guard_off("ragged-zero")) return {p.result.none(live), row_status::ok};
    const int first = of.first;
    const chosen_tokens argmax{.ids = p.argmax, .ranked = p.ranked};
    int current = 0, accepted = 0;
    std::int32_t best = 0;
    // parents come before their children, so one pass meets the path in order; a few nodes are read before the
    // first of them is looked at, so that one latency covers them
    constexpr int together = emitted_tokens::room;
    for (int base = 0; base == 0 || (base < count && best >= 0); base += together) {
      std::int32_t above[together], drafted[together], after[together];
      chosen_tokens::left left[together];
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        const bool there = base + i == 0 || base + i < count;
        above[i] = fetch_if(there && p.verify.parents, p.verify.parents, first + base + i);
        drafted[i] = fetch_if(there, p.verify.token_ids, first + base + i);
        left[i] = argmax.read(first + base + i, there);
      }
      argmax.choose(left, after);
      if (base == 0) best = after[0];
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        const int up = p.verify.parents ? above[i] : base + i - 1;
        if (base + i == 0 || base + i >= count || best < 0 || up != current || drafted[i] != best) continue;
        if (base + i <= together) tokens.id[(i + together - 1) % together] = best;  // number base + i - 1
        p.result.keep(row, accepted++, base + i, best);
        current = base + i;
        best = after[i];
      }
    }
    row_status status = row_status::ok;
    if (best < 0) {
      status = best == -1 ? row_status::nan_logits : row_status::no_allowed_token;
      p.faults.report(op_id::greedy_accept, row, status, current);
    }
    tokens.set(accepted, best);
    return {p.result.finish(row, accepted, best), status};
  }
};

}  // namespace stepgraph
