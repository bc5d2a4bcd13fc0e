#pragma once

#include "kernels/metadata/token_inputs_op.hpp"
#include "kernels/step/step_prologue.hpp"

namespace stepgraph {

/// Body of `step_prologue`.
struct step_prologue_op {
  static constexpr const char* name = "step_prologue";
  static constexpr int tile_columns = 0;  // vectors only
  step_prologue_params p;

  STEPGRAPH_HD int rows() const { return p.inputs.lengths.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(&p.header->live_rows, rows());
    if (team.rank() == 0) {
      *p.live_rows = live;
      if (live != p.header->live_rows)
        p.inputs.faults.report(op_id::step_prologue, -1, row_status::live_rows_clamped, p.header->live_rows);
    }
    for (int row = team.rank(); row < rows(); row += team.size()) p.row_status[row] = 0;
    team.sync();
    apply_patches(team);
    for (int row = team.rank(); row < rows(); row += team.size())
      row_vectors(row, row < live || guard_off("pad-shrink"));
    team.sync();  // the table and the rows are read below
    token_inputs_op{p.inputs}.vectors(team);
    team.sync();
    const std::int32_t live_tokens = p.inputs.cu_seqlens_q[rows()];
    for (int token = team.rank(); token < p.inputs.tokens; token += team.size())
      p.token_ids[token] = token < live_tokens ? token_id(token) : 0;
  }

 private:
  template <class Team>
  STEPGRAPH_HD void apply_patches(Team& team) const {
    const int count = p.header->patches < 0               ? 0
                      : p.header->patches > p.max_patches ? p.max_patches
                                                          : p.header->patches;
    for (int i = team.rank(); i < count; i += team.size()) {
      const page_patch patch = p.patches[i];
      if (patch.request < 0 || patch.request >= p.state.requests || patch.index < 0 ||
          patch.index >= p.state.page_columns) {
        p.inputs.faults.report(op_id::step_prologue, -1, row_status::request_out_of_range, patch.request);
        continue;
      }
      p.state.pages[patch.request * p.state.page_stride + patch.index] = patch.page;
    }
  }

  STEPGRAPH_HD void row_vectors(int row, bool live) const {
    std::int32_t request = live ? p.staged_requests[row] : 0;
    std::int32_t count = live ? p.staged_query_counts[row] : 0;
    if (request < 0 || request >= p.state.requests) {
      p.inputs.faults.report(op_id::step_prologue, row, row_status::request_out_of_range, request);
      request = 0;
      count = 0;  // the row sits the step out
      live = false;
    }
    const auto clamped =
        static_cast<std::int32_t>(clamp_reported(count, 0, p.inputs.max_query_count, p.inputs.faults,
                                                 op_id::step_prologue, row, row_status::query_count_clamped));
    const std::int32_t known = live ? p.staged_lengths[row] : 0;
    if (live && known >= 0) {
      // a line begins anew: nothing of its former owner may be taken for its own, even if this step fails
      p.state.seq_lens[request] = known;
      p.state.last_token[request] = -1;
    }
    p.requests[row] = request;
    p.query_counts[row] = clamped;
    p.seq_lens[row] = known >= 0 ? known : p.state.seq_lens[request];
  }

  STEPGRAPH_HD std::int32_t token_id(int token) const {
    const int row = p.inputs.row_of[token];
    const std::int32_t staged = p.staged_tokens[token];
    const std::int32_t id = staged >= 0 ? staged : p.state.last_token[p.requests[row]];
    if (id >= 0 && id < p.vocab_size) return id;
    p.inputs.faults.report(op_id::step_prologue, row, row_status::token_out_of_range, id);
    return 0;
  }
};

}  // namespace stepgraph
