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

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = guard_off("pad-scope") ? p.rows : live_count(p.live_rows, p.rows);
    const int slot = p.header->result_slot;
    const bool wanted = slot >= 0 && slot < p.result_slots;
    for (int row = team.rank(); row < live; row += team.size()) {
      const row_result result = p.emit_count ? accepted(row) : sampled(row);
      if (!wanted) continue;
      const std::int64_t line = std::int64_t{slot} * p.ring_rows + row;
      p.results[line] = result;
      for (int i = 0; i < result.count; ++i)
        p.result_tokens[line * p.emit_stride + i] =
            p.emit_tokens ? p.emit_tokens[row * p.emit_stride + i] : result.token;
    }
  }

 private:
  STEPGRAPH_HD bool ran(int row) const {
    return guard_off("pad-scope") || (p.query_counts[row] > 0 && p.row_status[row] == 0);
  }

  STEPGRAPH_HD void advance(int row, std::int32_t length, std::int32_t token) const {
    const std::int32_t request = p.requests[row];
    p.state.seq_lens[request] = length;
    p.state.last_token[request] = token;  // negative too: an older token must not be fed again
  }

  /// A row that emits one token at most.
  STEPGRAPH_HD row_result sampled(int row) const {
    const std::int32_t token = ran(row) ? p.next_token[row] : -1;
    if (ran(row)) advance(row, p.cache_seqlens[row], token);
    return {token, p.cache_seqlens[row], p.row_status[row], token >= 0 ? 1 : 0};
  }

  /// A row of a verify step: it keeps `cache_advance` of its E tokens.
  STEPGRAPH_HD row_result accepted(int row) const {
    const std::int32_t base = p.cache_seqlens[row] - p.query_counts[row];
    const std::int32_t length = (base > 0 ? base : 0) + p.cache_advance[row];
    const auto most = static_cast<std::int32_t>(p.emit_stride);
    const std::int32_t count = p.emit_count[row] > most ? most : p.emit_count[row];
    if (ran(row)) advance(row, length, p.next_token[row]);
    return {count > 0 ? p.next_token[row] : -1, ran(row) ? length : base, p.row_status[row], count};
  }
};

}  // namespace stepgraph
