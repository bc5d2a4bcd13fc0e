#include "kernels/step/draft_prologue.hpp"

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/step/draft_prologue_op.hpp"

namespace stepgraph {

void draft_prologue(stream_ref at, const draft_prologue_params& p) {
  constexpr const char* op = draft_prologue_op::name;
  check(op, p.rows);
  STEPGRAPH_EXPECTS(p.steps > 0, op, ": steps must be positive, got ", p.steps);
  STEPGRAPH_EXPECTS(p.max_context > 0, op, ": max_context must be positive, got ", p.max_context);
  detail::check_pointers(op, {{"rows.state.first_draft", p.rows.state.first_draft},
                              {"seq_lens", p.seq_lens},
                              {"query_counts", p.query_counts},
                              {"drafting", p.drafting},
                              {"cu_seqlens_q", p.cu_seqlens_q},
                              {"row_of", p.row_of},
                              {"last_row", p.last_row},
                              {"token_ids", p.token_ids},
                              {"hidden_row", p.hidden_row}});
  launch_tiles(at, draft_prologue_op{p});
}

}  // namespace stepgraph
