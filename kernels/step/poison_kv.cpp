#include "kernels/step/poison_kv.hpp"

#include "kernels/check.hpp"
#include "kernels/step/poison_kv_op.hpp"

namespace stepgraph {

void poison_kv(stream_ref at, const poison_kv_params& params) {
  constexpr const char* op = poison_kv_op::name;
  detail::check_pointers(op, {{"pool", params.pool},
                              {"open", params.open},
                              {"seq_lens", params.seq_lens},
                              {"live_tokens", params.live_tokens}});
  detail::check_source(op, params.source);
  STEPGRAPH_EXPECTS(params.planes > 0 && params.pages > 0, op, ": planes and pages must be positive, got ",
                    params.planes, " and ", params.pages);
  STEPGRAPH_EXPECTS(params.token_bytes > 0 && params.token_bytes % 16 == 0 && params.plane_stride % 16 == 0 &&
                        params.page_bytes == params.token_bytes << params.source.page_shift,
                    op, ": pages of 2^", params.source.page_shift, " tokens of ", params.token_bytes,
                    " bytes, a multiple of 16, must have as many bytes; page_bytes is ", params.page_bytes,
                    ", plane_stride ", params.plane_stride);
  at.fill(params.live_tokens, 0, sizeof(std::int32_t) * static_cast<std::size_t>(params.pages));
  launch_rows(at, mark_live_op{params});
  launch_rows(at, poison_kv_op{params});
}

}  // namespace stepgraph
