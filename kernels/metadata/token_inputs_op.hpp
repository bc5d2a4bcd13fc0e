#pragma once

#include "kernels/metadata/query_tokens.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `token_inputs`; see the parameters for what it writes.
struct token_inputs_op {
  static constexpr const char* name = "token_inputs";
  static constexpr op_id id = op_id::token_inputs;
  static constexpr int tile_columns = 0;  // vectors only
  token_inputs_params p{};

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const query_tokens query{p.query_counts, false, p.max_query_count, p.tokens};
    scan_query_tokens(team, p.lengths, query, p.cu_seqlens_q, p.faults, id, query.first_raw(team, p.lengths),
                      [&](int row, int first, int end) {
                        p.lengths.length_reported(row, p.faults, id);
                        if (p.last_row) p.last_row[row] = end > first ? end - 1 : 0;
                      });
    team.sync();
    const std::int32_t live_tokens = p.cu_seqlens_q[p.lengths.rows];
    for (int token = team.rank(); token < p.tokens; token += team.size())
      token_vectors(query, token, token < live_tokens);
  }

 private:
  STEPGRAPH_HD void token_vectors(const query_tokens& query, int token, bool live) const {
    const token_place at = live ? place_of(p.lengths, query, p.cu_seqlens_q, token) : token_place{0, 0, 0};
    std::int64_t position = at.causal > 0 ? at.causal - 1 : 0;
    if (live && p.depth) {
      position = p.lengths.length(at.row) - query.count(p.lengths, at.row) + p.depth[token];
      if (position < 0) position = 0;
    }
    p.row_of[token] = at.row;
    if (p.position) p.position[token] = static_cast<std::int32_t>(position);
    if (p.causal_length) p.causal_length[token] = static_cast<std::int32_t>(at.causal);
    if (p.out_cache_loc)
      p.out_cache_loc.store(token, at.causal > 0                    ? store_slot(at)
                                   : guard_off("sink-or-minus-one") ? -1 - p.skip
                                                                    : p.skip);
  }

  STEPGRAPH_HD std::int64_t store_slot(const token_place& at) const {
    std::int64_t slot = slot_reported(p.source, p.requests[at.row], at.causal - 1, p.faults, id, at.row);
    if (p.page_map) slot = slot_by_page_map(p.page_map, slot, p.source.page_shift, p.faults, id, at.row);
    return slot < 0 ? p.skip : slot;
  }
};

}  // namespace stepgraph
