#include "kernels/step/draft_prologue.hpp"

#include "graphs/error.hpp"
#include "kernels/step/draft_prologue_op.hpp"

namespace stepgraph {

void draft_prologue(stream_ref at, const draft_prologue_params& p) {
  constexpr const char* op = draft_prologue_op::name;
  check(op, p.rows);
  STEPGRAPH_EXPECTS(p.steps > 0, op, ": steps must be positive, got ", p.steps);
  STEPGRAPH_EXPECTS(p.max_context > 0, op, ": max_context must be positive, got ", p.max_context);
  STEPGRAPH_EXPECTS(p.rows.state.first_draft, op, ": rows.state.first_draft is null");
  STEPGRAPH_EXPECTS(p.seq_lens && p.query_counts && p.drafting && p.cu_seqlens_q && p.row_of && p.last_row &&
                        p.token_ids && p.hidden_row,
                    op, ": an output is null");
  launch_tiles(at, draft_prologue_op{p});
}

}  // namespace stepgraph
