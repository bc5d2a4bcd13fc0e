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
    if (team.rank() == 0) p.cu_seqlens_q[0] = 0;
    if (team.rank() == 0 && p.drawn) *p.drawn = p.draws ? 1 : 0;
    const int live = live_count(&p.rows.header->live_rows, p.rows.rows);
    std::int32_t first = -1;
    gather_rows(
        team, p.rows,
        [&](int, std::int32_t request) { first = p.rows.state.first_drafts(p.target_ids)[request]; },
        [&](int row, const gathered_row& of) {
          const bool is_live = row < live, drafts = is_live && takes_part(of, first);
          p.seq_lens[row] = drafts ? of.length : -p.steps;
          p.query_counts[row] = is_live ? 1 : 0;
          p.drafting[row] = drafts ? 1 : 0;
          p.cu_seqlens_q[row + 1] = is_live ? row + 1 : live;
          p.row_of[row] = p.last_row[row] = is_live ? row : 0;
          p.token_ids[row] = drafts ? first : 0;
          p.hidden_row[row] = drafts ? of.request : p.rows.state.requests;
        });
  }

 private:
  STEPGRAPH_HD bool takes_part(const gathered_row& of, std::int32_t first) const {
    if (of.count == 0 || of.joins || first < 0) return false;
    std::int64_t capacity = p.max_context;
    if (p.rows.state.token_capacity && of.capacity < capacity) capacity = of.capacity;
    return std::int64_t{of.length} + p.steps <= capacity;
  }
};

}  // namespace stepgraph
