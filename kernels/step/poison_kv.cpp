#include "kernels/step/poison_kv.hpp"

#include "graphs/error.hpp"
#include "kernels/step/poison_kv_op.hpp"

namespace stepgraph {

void poison_kv(stream_ref at, const poison_kv_params& params) {
  constexpr const char* op = poison_kv_op::name;
  STEPGRAPH_EXPECTS(params.pool && params.owners && params.seq_lens, op, ": a pointer is null");
  STEPGRAPH_EXPECTS(params.planes > 0 && params.pages > 0 && params.requests > 0, op,
                    ": planes, pages and requests must be positive, got ", params.planes, ", ", params.pages,
                    " and ", params.requests);
  STEPGRAPH_EXPECTS(params.token_bytes > 0 && params.token_bytes % 16 == 0 && params.page_bytes > 0 &&
                        params.page_bytes % params.token_bytes == 0 && params.plane_stride % 16 == 0,
                    op, ": a page of ", params.page_bytes, " bytes must hold whole tokens of ",
                    params.token_bytes, ", a multiple of 16; plane_stride is ", params.plane_stride);
  launch_rows(at, poison_kv_op{params});
}

}  // namespace stepgraph
