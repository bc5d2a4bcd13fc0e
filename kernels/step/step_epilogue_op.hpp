#pragma once

#include "kernels/step/step_epilogue.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `step_epilogue`.
struct step_epilogue_op {
  static constexpr const char* name = "step_epilogue";
  static constexpr int tile_columns = 0;  // vectors only
  step_epilogue_params p;

  STEPGRAPH_HD int rows() const { return p.rows; }
  STEPGRAPH_HD std::int64_t live_columns(int) const { return 0; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(p.live_rows, p.rows);
    const int slot = p.header->result_slot;
    row_result* const ring =
        slot >= 0 && slot < p.result_slots ? p.results + std::int64_t{slot} * p.ring_rows : nullptr;
    for (int row = team.rank(); row < live; row += team.size()) {
      const int request = p.requests[row];
      const bool ran = p.query_counts[row] > 0;
      const std::int32_t status = p.row_status[row];
      const std::int32_t token = ran && status == 0 ? p.next_token[row] : -1;
      if (ran && status == 0) {
        p.state.seq_lens[request] = p.cache_seqlens[row];
        if (token >= 0) p.state.last_token[request] = token;
      }
      if (ring) ring[row] = row_result{token, p.cache_seqlens[row], status, 0};
    }
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team&, int, std::int64_t, std::int64_t) const {}
};

}  // namespace stepgraph
