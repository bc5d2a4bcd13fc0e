#pragma once

#include "kernels/metadata/token_inputs_op.hpp"
#include "kernels/speculate/draft_extend_inputs.hpp"

namespace stepgraph {

/// Body of `draft_extend_inputs`.
struct draft_extend_inputs_op {
  static constexpr const char* name = "draft_extend_inputs";
  static constexpr int tile_columns = 0;  // vectors only
  draft_extend_inputs_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(p.verify.live_rows, rows());
    for (int row = team.rank(); row < rows(); row += team.size())
      p.query_counts[row] = row < live ? count_of(row) : 0;
    team.sync();  // the counts are read below
    token_inputs_op{p.inputs}.vectors(team);
    team.sync();  // and the rows of the tokens
    const std::int32_t live_tokens = p.inputs.cu_seqlens_q[rows()];
    for (int token = team.rank(); token < p.inputs.tokens; token += team.size()) {
      const bool is_live = token < live_tokens;
      const int row = p.inputs.row_of[token];
      const int entry = is_live ? token - p.inputs.cu_seqlens_q[row] : 0;
      p.token_ids[token] = is_live ? p.result.emitted(row)[entry] : 0;
      if (p.hidden_row)
        p.hidden_row[token] = is_live ? p.verify.cu_seqlens_q[row] + p.result.path_of(row)[entry] : 0;
    }
  }

 private:
  STEPGRAPH_HD std::int32_t count_of(int row) const {
    const std::int64_t request = p.inputs.requests[row];
    if (!p.inputs.source.has_request(request)) {
      p.inputs.faults.report(op_id::draft_extend_inputs, row, row_status::request_out_of_range, request);
      return 0;
    }
    if (p.finished && p.finished[request] != 0) return 0;
    const std::int32_t emitted = p.result.emit_count[row], cached = p.result.cache_advance[row];
    return emitted < cached ? emitted : cached;
  }
};

}  // namespace stepgraph
