#pragma once

#include "kernels/metadata/row_vectors.hpp"
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
    const bool plain = p.plain.accepts && *p.plain.accepts == 0;
    for (int row = team.rank(); row < rows(); row += team.size()) {
      const std::int32_t count = row < live ? count_of(row, plain) : 0;
      p.query_counts[row] = count;
      const std::int32_t line = !p.out_line ? row
                                : count > 0 ? static_cast<std::int32_t>(p.inputs.requests[row])
                                            : p.inputs.source.requests;
      if (p.out_line) p.out_line[row] = line;
      if (p.ranked) p.ranked[line] = 0;
      if (p.first_drawn) p.first_drawn[line] = p.draws ? 1 : 0;
    }
    // note: a thread's rows are its own, so the counts may be read; the scans make them readable to all
    if (p.cache_seqlens)
      write_lengths(team, p.inputs.lengths, p.cache_seqlens, p.cu_seqlens_k, {}, op_id::draft_extend_inputs);
    // a step that was no verify step may have given a row all its tokens
    token_inputs_op{p.inputs}.vectors(team, !plain, [&](int token, const token_place& at, bool is_live) {
      p.token_ids[token] = is_live ? token_id(at.row, at.number, plain) : 0;
      if (p.hidden_row)
        p.hidden_row[token] = is_live ? p.verify.cu_seqlens_q[at.row] +
                                            (plain ? at.number : p.result.path_of(at.row)[at.number])
                                      : 0;
    });
  }

 private:
  STEPGRAPH_HD std::int32_t token_id(int row, int entry, bool plain) const {
    if (!plain) return p.result.emitted(row)[entry];
    return entry + 1 < p.query_counts[row] ? p.plain.token_ids[p.verify.cu_seqlens_q[row] + entry + 1]
                                           : p.plain.last_token[p.inputs.requests[row]];
  }

  STEPGRAPH_HD std::int32_t count_of(int row, bool plain) const {
    const std::int64_t request = p.inputs.requests[row];
    if (!p.inputs.source.has_request(request)) {
      p.inputs.faults.report(op_id::draft_extend_inputs, row, row_status::request_out_of_range, request);
      return 0;
    }
    // note: all is read before any of it is used, so that one latency covers it
    const std::int32_t ended = p.finished ? p.finished[request] : 0;
    const std::int32_t emitted = plain ? p.plain.query_counts[row] : p.result.emit_count[row];
    const std::int32_t cached = plain ? p.plain.last_token[request] : p.result.cache_advance[row];
    if (ended != 0) return 0;
    if (plain) return cached >= 0 ? emitted : 0;
    return emitted < cached ? emitted : cached;
  }
};

}  // namespace stepgraph
