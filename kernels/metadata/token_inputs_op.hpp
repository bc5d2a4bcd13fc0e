#pragma once

#include "kernels/metadata/token_inputs.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `token_inputs`; see the parameters for what it writes.
struct token_inputs_op {
  static constexpr const char* name = "token_inputs";
  static constexpr int tile_columns = 0;  // vectors only
  token_inputs_params p{};

  STEPGRAPH_HD int rows() const { return p.lengths.rows; }
  STEPGRAPH_HD std::int64_t live_columns(int) const { return 0; }

  STEPGRAPH_HD std::int32_t query_count(int row) const {
    if (row >= p.lengths.live()) return 0;
    return static_cast<std::int32_t>(clamp_reported(p.query_counts[row], 0, p.max_query_count, p.faults,
                                                    op_id::token_inputs, row,
                                                    row_status::query_count_clamped));
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int rows = p.lengths.rows;
    // prefix sums of E, cut off at the token bucket
    std::int32_t before = 0;
    if (team.rank() == 0) p.cu_seqlens_q[0] = 0;
    for (int base = 0; base < rows; base += team.size()) {
      const int row = base + team.rank();
      const std::int32_t count = row < rows ? query_count(row) : 0;
      if (row < rows)
        p.lengths.length_reported(row, p.faults, op_id::token_inputs);  // also where it has no tokens
      const auto sum = team.exclusive_sum(count);
      if (row < rows) {
        const std::int32_t first = min_of(before + sum.before, p.tokens);
        const std::int32_t end = min_of(before + sum.before + count, p.tokens);
        if (end - first < count)
          p.faults.report(op_id::token_inputs, row, row_status::query_count_clamped, count);
        p.cu_seqlens_q[row + 1] = end;
        if (p.last_row) p.last_row[row] = end > first ? end - 1 : 0;
      }
      before += sum.total;
    }
    team.sync();
    const std::int32_t live_tokens = p.cu_seqlens_q[rows];
    for (int token = team.rank(); token < p.tokens; token += team.size())
      token_vectors(token, token < live_tokens);
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team&, int, std::int64_t, std::int64_t) const {}

 private:
  STEPGRAPH_HD static std::int32_t min_of(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

  /// The row whose tokens hold `token`: the last one with cu_seqlens_q[row] <= token and E > 0.
  STEPGRAPH_HD int find_row(int token) const {
    int low = 0, high = p.lengths.rows - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (p.cu_seqlens_q[middle] <= token)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  STEPGRAPH_HD void token_vectors(int token, bool live) const {
    const int row = live ? find_row(token) : 0;
    std::int64_t causal = 0, slot = p.skip;
    if (live) {
      const std::int64_t base = p.lengths.length(row) - query_count(row);
      causal = base + (token - p.cu_seqlens_q[row]) + 1;
      if (causal < 0) causal = 0;
      if (causal > 0) slot = store_slot(row, causal - 1);
    }
    p.row_of[token] = row;
    if (p.position) p.position[token] = static_cast<std::int32_t>(causal > 0 ? causal - 1 : 0);
    if (p.causal_length) p.causal_length[token] = static_cast<std::int32_t>(causal);
    if (p.out_cache_loc) p.out_cache_loc.store(token, slot);
  }

  STEPGRAPH_HD std::int64_t store_slot(int row, std::int64_t position) const {
    const std::int64_t request = p.requests[row];
    if (!p.source.has_request(request)) {
      p.faults.report(op_id::token_inputs, row, row_status::request_out_of_range, request);
      return p.skip;
    }
    const std::int64_t slot = p.source.slot(request, position);
    if (slot >= 0) return slot;
    p.faults.report(op_id::token_inputs, row, row_status::slot_out_of_range, position);
    return p.skip;
  }
};

}  // namespace stepgraph
