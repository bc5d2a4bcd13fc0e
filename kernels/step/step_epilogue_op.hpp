#pragma once

#include "kernels/speculate/finish_rows_op.hpp"
#include "kernels/speculate/greedy_accept_op.hpp"
#include "kernels/step/step_epilogue.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `step_epilogue`: a thread a row.
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
    for (int row = team.rank(); row < rows(); row += team.size()) {
      if (p.accepts && p.accept.argmax) greedy_accept_op{p.accept}.walk(row, row < live);
      if (row >= live) continue;
      const row_result result = p.accepts ? accepted(row) : sampled(row);
      if (!wanted) continue;
      const std::int64_t line = std::int64_t{slot} * p.ring_rows + row;
      p.results[line] = result;
      for (int i = 0; i < result.count; ++i)
        p.result_tokens[line * p.emit_stride + i] =
            p.accepts ? p.accept.result.emitted(row)[i] : result.token;
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
    p.state.forget_first_draft(request);  // it was for the place just decided
  }

  /// What the body chose; where its head has ranked, nobody has reported yet what is no token.
  STEPGRAPH_HD std::int32_t chosen_token(int row) const {
    const std::int32_t token = chosen_tokens{.ids = p.next_token, .ranked = p.ranked}[row];
    if (token < 0 && p.ranked && p.ranked[row] != 0 && p.query_counts[row] > 0)
      report_unranked(p.accept.faults, row, p.ranked[row]);
    return token;
  }

  /// A row that emits one token at most, and keeps all that it stored.
  STEPGRAPH_HD row_result sampled(int row) const {
    const std::int32_t length = p.cache_seqlens[row], following = p.following[row];
    const std::int32_t chosen = chosen_token(row);
    std::int32_t token = ran(row) && following < 0 ? chosen : -1;
    finish_reason reason = finish_reason::running;
    if (p.finish.finished) reason = finish_rows_op{p.finish}.finish_one(row, length, token);
    if (ran(row)) advance(row, length, following >= 0 ? following : token);
    return {token, length, p.row_status[row], token >= 0 ? 1 : 0, static_cast<std::int32_t>(reason)};
  }

  /// A row of a verify step: it keeps `cache_advance` of its E tokens.
  STEPGRAPH_HD row_result accepted(int row) const {
    const accept_result& result = p.accept.result;
    finish_reason reason = finish_reason::running;
    if (p.finish.finished) reason = finish_rows_op{p.finish}.finish(row);
    const std::int32_t base = p.cache_seqlens[row] - p.query_counts[row];
    const std::int32_t length = (base > 0 ? base : 0) + result.cache_advance[row];
    const auto most = static_cast<std::int32_t>(p.emit_stride);
    const std::int32_t count = result.emit_count[row] > most ? most : result.emit_count[row];
    if (ran(row)) advance(row, length, result.next_token[row]);
    return {count > 0 ? result.next_token[row] : -1, ran(row) ? length : base, p.row_status[row], count,
            static_cast<std::int32_t>(reason)};
  }
};

}  // namespace stepgraph
