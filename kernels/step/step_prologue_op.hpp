#pragma once

#include "kernels/metadata/token_inputs_op.hpp"
#include "kernels/step/step_prologue.hpp"

namespace stepgraph {

/// Body of `step_prologue`.
struct step_prologue_op {
  static constexpr const char* name = "step_prologue";
  static constexpr int tile_columns = 0;  // vectors only
  step_prologue_params p;

  STEPGRAPH_HD int rows() const { return p.rows.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    gather_rows(team, p.rows);
    team.sync();  // the table and the rows are read below
    token_inputs_op{p.inputs}.vectors(team);
    team.sync();
    const std::int32_t live_tokens = p.inputs.cu_seqlens_q[rows()];
    for (int token = team.rank(); token < p.inputs.tokens; token += team.size())
      p.token_ids[token] = token < live_tokens ? token_id(token) : 0;
  }

 private:
  // note: a row that has ended takes no tokens, so a row's staged tokens need not lie where its own do
  STEPGRAPH_HD std::int32_t token_id(int token) const {
    const int row = p.inputs.row_of[token];
    const std::int32_t staged =
        p.staged_tokens[p.rows.token_starts[row] + token - p.inputs.cu_seqlens_q[row]];
    const std::int32_t id = staged >= 0 ? staged : p.rows.state.last_token[p.rows.requests[row]];
    if (id >= 0 && id < p.vocab_size) return id;
    p.inputs.faults.report(op_id::step_prologue, row, row_status::token_out_of_range, id);
    return 0;
  }
};

}  // namespace stepgraph
