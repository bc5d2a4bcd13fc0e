#include "kernels/metadata/token_inputs.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/token_inputs_op.hpp"

namespace stepgraph {

void check(const token_inputs_params& p) {
  constexpr const char* op = token_inputs_op::name;
  detail::check_cached(op, p.lengths, p.source, p.requests);
  detail::check_map(op, "page_map", p.page_map);
  STEPGRAPH_EXPECTS(p.tokens > 0, op, ": tokens must be positive, got ", p.tokens);
  STEPGRAPH_EXPECTS(p.max_query_count > 0, op, ": max_query_count must be positive, got ", p.max_query_count);
  detail::check_pointers(
      op, {{"query_counts", p.query_counts}, {"cu_seqlens_q", p.cu_seqlens_q}, {"row_of", p.row_of}});
}

void token_inputs(stream_ref at, const token_inputs_params& params) {
  check(params);
  launch_tiles(at, token_inputs_op{params});
}

}  // namespace stepgraph
