#pragma once

#include "kernels/step/draft_prologue.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `draft_prologue`.
struct draft_prologue_op {
  static constexpr const char* name = "draft_prologue";
  static constexpr int tile_columns = 0;  // vectors only
  draft_prologue_params p;

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    gather_rows(team, p.rows);
    // note: a thread's rows are its own, so what was gathered may be read
    const int live = live_count(&p.rows.header->live_rows, p.rows.rows);
    if (team.rank() == 0) p.cu_seqlens_q[0] = 0;
    if (team.rank() == 0 && p.drawn) *p.drawn = p.draws ? 1 : 0;
    for (int row = team.rank(); row < p.rows.rows; row += team.size()) {
      const std::int32_t first = row < live ? first_draft(row) : -1;
      const bool is_live = row < live, drafts = is_live && takes_part(row, first);
      const std::int32_t request = p.rows.requests[row];
      p.seq_lens[row] = drafts ? p.rows.seq_lens[row] : -p.steps;
      p.query_counts[row] = is_live ? 1 : 0;
      p.drafting[row] = drafts ? 1 : 0;
      p.cu_seqlens_q[row + 1] = is_live ? row + 1 : live;
      p.row_of[row] = p.last_row[row] = is_live ? row : 0;
      p.token_ids[row] = drafts ? first : 0;
      p.hidden_row[row] = drafts ? request : p.rows.state.requests;
    }
  }

 private:
  STEPGRAPH_HD std::int32_t first_draft(int row) const {
    return p.rows.state.first_drafts(p.target_ids)[p.rows.requests[row]];
  }

  STEPGRAPH_HD bool takes_part(int row, std::int32_t first) const {
    const std::int32_t request = p.rows.requests[row];
    if (p.rows.query_counts[row] == 0 || first < 0) return false;
    std::int64_t capacity = p.max_context;
    if (p.rows.state.token_capacity && p.rows.state.token_capacity[request] < capacity)
      capacity = p.rows.state.token_capacity[request];
    return std::int64_t{p.rows.seq_lens[row]} + p.steps <= capacity;
  }
};

}  // namespace stepgraph
