#include "kernels/step/step_epilogue.hpp"

#include "graphs/error.hpp"
#include "kernels/speculate/check_accept.hpp"
#include "kernels/step/step_epilogue_op.hpp"

namespace stepgraph {

void step_epilogue(stream_ref at, const step_epilogue_params& params) {
  constexpr const char* op = step_epilogue_op::name;
  STEPGRAPH_EXPECTS(params.rows > 0, op, ": rows must be positive, got ", params.rows);
  STEPGRAPH_EXPECTS(params.header && params.following && params.live_rows && params.requests &&
                        params.query_counts && params.cache_seqlens && params.next_token && params.row_status,
                    op, ": an input is null");
  STEPGRAPH_EXPECTS(params.result_tokens && params.emit_stride > 0, op,
                    ": result_tokens is null, or emit_stride ", params.emit_stride, " is not positive");
  STEPGRAPH_EXPECTS(params.state.seq_lens && params.state.last_token, op,
                    ": the request state has a null pointer");
  STEPGRAPH_EXPECTS(params.results && params.result_slots > 0 && params.ring_rows >= params.rows, op,
                    ": the result ring holds ", params.result_slots, " slots of ", params.ring_rows,
                    " rows for ", params.rows, " rows");
  if (params.accepts) {
    detail::check_verify(op, params.accept.verify);
    detail::check_result(op, params.accept.result, params.accept.verify.max_query_count);
    if (params.accept.argmax) check(params.accept);
  }
  if (params.finish.finished) check(params.finish);
  launch_tiles(at, step_epilogue_op{params});
}

}  // namespace stepgraph
