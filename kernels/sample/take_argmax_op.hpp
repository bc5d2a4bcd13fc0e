#pragma once

#include "kernels/sample/ranked_logit.hpp"
#include "kernels/sample/take_argmax.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `take_argmax`: a thread a row.
struct take_argmax_op {
  static constexpr const char* name = "take_argmax";
  static constexpr int tile_columns = 0;  // vectors only
  take_argmax_params p;

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int n = live_count(p.live_rows, p.rows);
    for (int row = team.rank(); row < p.rows; row += team.size()) {
      // note: all is read before any of it is used, so that one latency covers it
      const std::int32_t count = p.query_counts ? p.query_counts[row] : 1;
      const std::uint64_t ranked = p.ranked[row];
      if (row >= n || count <= 0) {
        p.out.store_none(p.next_token, row, row < n);
        continue;
      }
      const std::int32_t token = token_of_ranked(ranked);
      if (token < 0) report_unranked(p.faults, row, ranked);
      p.out.store(p.next_token, row, token);
    }
  }
};

}  // namespace stepgraph
