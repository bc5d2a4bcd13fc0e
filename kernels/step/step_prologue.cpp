#include "kernels/step/step_prologue.hpp"

#include "graphs/error.hpp"
#include "kernels/step/step_prologue_op.hpp"

namespace stepgraph {

void check(const char* op, const step_rows_params& p) {
  STEPGRAPH_EXPECTS(p.rows > 0, op, ": rows must be positive, got ", p.rows);
  STEPGRAPH_EXPECTS(p.header && p.requests_in && p.counts_in && p.token_starts && p.following &&
                        p.capacities_in && p.joins_in,
                    op, ": a staged input is null");
  STEPGRAPH_EXPECTS(p.state.pages && p.state.seq_lens && p.state.last_token, op,
                    ": the request state has a null pointer");
  STEPGRAPH_EXPECTS(p.live_rows && p.requests && p.query_counts && p.seq_lens && p.row_status, op,
                    ": an output is null");
}

void step_prologue(stream_ref at, const step_prologue_params& params) {
  constexpr const char* op = step_prologue_op::name;
  check(op, params.rows);
  check(params.inputs);
  STEPGRAPH_EXPECTS(params.staged_tokens, op, ": staged_tokens is null");
  STEPGRAPH_EXPECTS(params.token_ids, op, ": token_ids is null");
  STEPGRAPH_EXPECTS(params.vocab_size > 0, op, ": vocab_size must be positive, got ", params.vocab_size);
  launch_tiles(at, step_prologue_op{params});
}

}  // namespace stepgraph
