#include "kernels/speculate/draft_extend_inputs.hpp"

#include "kernels/speculate/check_accept.hpp"
#include "kernels/speculate/draft_extend_inputs_op.hpp"

namespace stepgraph {

void check(const draft_extend_inputs_params& p) {
  constexpr const char* op = draft_extend_inputs_op::name;
  detail::check_verify(op, p.verify);
  detail::check_result(op, p.result, p.verify.max_query_count);
  check(p.inputs);
  detail::check_pointers(op, {{"query_counts", p.query_counts}, {"token_ids", p.token_ids}});
  if (p.plain.accepts)
    detail::check_pointers(op, {{"plain.token_ids", p.plain.token_ids},
                                {"plain.query_counts", p.plain.query_counts},
                                {"plain.last_token", p.plain.last_token}});
  STEPGRAPH_EXPECTS(p.inputs.lengths.rows == p.verify.rows, op, ": inputs.lengths.rows ",
                    p.inputs.lengths.rows, " differs from verify.rows ", p.verify.rows);
  STEPGRAPH_EXPECTS(p.inputs.query_counts == p.query_counts, op,
                    ": inputs.query_counts must be query_counts");
  STEPGRAPH_EXPECTS(p.inputs.lengths.delta_by_row == p.query_counts, op,
                    ": inputs.lengths.delta_by_row must be query_counts");
}

void draft_extend_inputs(stream_ref at, const draft_extend_inputs_params& params) {
  check(params);
  launch_tiles(at, draft_extend_inputs_op{params});
}

}  // namespace stepgraph
