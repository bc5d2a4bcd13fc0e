#pragma once

#include "kernels/speculate/finish_rows.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `finish_rows`: a thread a row.
struct finish_rows_op {
  static constexpr const char* name = "finish_rows";
  static constexpr int tile_columns = 0;  // vectors only
  finish_rows_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(p.verify.live_rows, rows());
    for (int row = team.rank(); row < rows(); row += team.size()) {
      const finish_reason reason = row < live ? finish(row) : finish_reason::running;
      if (p.reason) p.reason[row] = static_cast<std::int32_t>(reason);
    }
  }

  /// One row of a verify step, by one thread.
  STEPGRAPH_HD finish_reason finish(int row) const {
    const std::int64_t request = p.requests[row];
    if (request < 0 || request >= p.request_count) {
      p.faults.report(op_id::finish_rows, row, row_status::request_out_of_range, request);
      return finish_reason::fault;
    }
    // note: all is read before any of it is used, so that one latency covers it
    const std::int32_t before = p.finished[request], budget = p.budget ? p.budget[request] : 0;
    const int emitted = p.result.emit_count[row], count = p.verify.count(row);
    const std::int64_t base = static_cast<std::int64_t>(p.cache_seqlens[row]) - count;
    if (before != 0) {
      cut(row, 0);
      return static_cast<finish_reason>(before);
    }
    // a request with nothing left to spend may emit nothing
    finish_reason reason = p.budget && budget <= 0 ? finish_reason::token_budget : finish_reason::running;
    int kept = 0;
    constexpr int together = 4;
    while (kept < emitted && reason == finish_reason::running) {
      std::int32_t tokens[together];
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i)
        if (kept + i < emitted) tokens[i] = p.result.emitted(row)[kept + i];
      // the token emitted as number i has position base + i
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        if (kept >= emitted || reason != finish_reason::running) continue;
        ++kept;
        if (ends(tokens[i]))
          reason = finish_reason::end_of_sequence;
        else if (p.budget && kept >= budget)
          reason = finish_reason::token_budget;
        else if (base + kept >= p.max_context)
          reason = finish_reason::context_limit;
      }
    }
    if (kept < emitted) cut(row, kept);
    if (p.budget && kept > 0) p.budget[request] = budget > kept ? budget - kept : 0;
    return note(row, request, reason);
  }

  /// A row that emits one token at most, `token` (negative: none; cut to that if the request may emit
  /// nothing), at position `length`, which is also what it has in the cache.
  STEPGRAPH_HD finish_reason finish_one(int row, std::int64_t length, std::int32_t& token) const {
    const std::int64_t request = p.requests[row];
    if (request < 0 || request >= p.request_count) {
      p.faults.report(op_id::finish_rows, row, row_status::request_out_of_range, request);
      token = -1;
      return finish_reason::fault;
    }
    if (const std::int32_t before = p.finished[request]; before != 0) {
      token = -1;
      return static_cast<finish_reason>(before);
    }
    finish_reason reason = finish_reason::running;
    if (p.budget && p.budget[request] <= 0) {
      token = -1;
      reason = finish_reason::token_budget;
    }
    if (token >= 0) {
      if (p.budget) --p.budget[request];
      if (ends(token))
        reason = finish_reason::end_of_sequence;
      else if (p.budget && p.budget[request] <= 0)
        reason = finish_reason::token_budget;
      else if (length >= p.max_context)
        reason = finish_reason::context_limit;
    }
    return note(row, request, reason);
  }

 private:
  STEPGRAPH_HD bool ends(std::int32_t token) const {
    for (int i = 0; i < p.end_id_count; ++i)
      if (p.end_ids[i] == token) return true;
    return false;
  }

  /// Cuts the row's tokens to `kept` of them, the last of which ended the text.
  STEPGRAPH_HD void cut(int row, int kept) const {
    p.result.emit_count[row] = kept;
    // the last token emitted is never in the cache: before it lie the row's old last token and kept - 1
    // drafts
    if (kept < p.result.cache_advance[row]) p.result.cache_advance[row] = kept;
    p.result.next_token[row] = kept > 0 ? p.result.emitted(row)[kept - 1] : -1;
  }

  /// `reason`, or what ends the request beside its text; remembered.
  STEPGRAPH_HD finish_reason note(int row, std::int64_t request, finish_reason reason) const {
    if (reason == finish_reason::running && p.row_status && p.row_status[row] != 0)
      reason = finish_reason::fault;
    if (reason == finish_reason::running && p.stop_flags && p.stop_flags[request] != 0)
      reason = finish_reason::host_stop;
    if (reason != finish_reason::running) p.finished[request] = static_cast<std::int32_t>(reason);
    return reason;
  }
};

}  // namespace stepgraph
