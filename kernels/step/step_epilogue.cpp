#include "kernels/step/step_epilogue.hpp"

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/speculate/check_accept.hpp"
#include "kernels/step/step_epilogue_op.hpp"

namespace stepgraph {

void step_epilogue(stream_ref at, const step_epilogue_params& params) {
  constexpr const char* op = step_epilogue_op::name;
  STEPGRAPH_EXPECTS(params.rows > 0, op, ": rows must be positive, got ", params.rows);
  detail::check_pointers(op, {{"header", params.header},
                              {"following", params.following},
                              {"live_rows", params.live_rows},
                              {"requests", params.requests},
                              {"query_counts", params.query_counts},
                              {"cache_seqlens", params.cache_seqlens},
                              {"next_token", params.next_token},
                              {"row_status", params.row_status},
                              {"state.seq_lens", params.state.seq_lens},
                              {"state.last_token", params.state.last_token},
                              {"results", params.results},
                              {"result_tokens", params.result_tokens}});
  STEPGRAPH_EXPECTS(params.emit_stride > 0, op, ": emit_stride must be positive, got ", params.emit_stride);
  STEPGRAPH_EXPECTS(params.result_slots > 0 && params.ring_rows >= params.rows, op,
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
