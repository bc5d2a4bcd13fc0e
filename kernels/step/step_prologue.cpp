#include "kernels/step/step_prologue.hpp"

#include "graphs/error.hpp"
#include "kernels/step/step_prologue_op.hpp"

namespace stepgraph {

void step_prologue(stream_ref at, const step_prologue_params& params) {
  constexpr const char* op = step_prologue_op::name;
  check(params.inputs);
  STEPGRAPH_EXPECTS(params.header && params.staged_requests && params.staged_query_counts &&
                        params.staged_lengths && params.staged_tokens && params.patches,
                    op, ": a staged input is null");
  STEPGRAPH_EXPECTS(params.state.pages && params.state.seq_lens && params.state.last_token, op,
                    ": the request state has a null pointer");
  STEPGRAPH_EXPECTS(params.live_rows && params.requests && params.query_counts && params.seq_lens &&
                        params.row_status && params.token_ids,
                    op, ": an output is null");
  STEPGRAPH_EXPECTS(params.vocab_size > 0, op, ": vocab_size must be positive, got ", params.vocab_size);
  launch_tiles(at, step_prologue_op{params});
}

}  // namespace stepgraph
