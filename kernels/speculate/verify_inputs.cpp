#include "kernels/speculate/verify_inputs.hpp"

#include "kernels/check.hpp"
#include "kernels/speculate/verify_inputs_op.hpp"

namespace stepgraph {

void check_tree(std::span<const std::int32_t> parents) {
  STEPGRAPH_EXPECTS(!parents.empty() && parents.size() <= 64, "check_tree: a tree has 1 to 64 nodes, got ",
                    parents.size());
  STEPGRAPH_EXPECTS(parents[0] < 0, "check_tree: node 0 is the root, its parent must be negative, got ",
                    parents[0]);
  for (std::size_t node = 1; node < parents.size(); ++node)
    STEPGRAPH_EXPECTS(parents[node] >= 0 && static_cast<std::size_t>(parents[node]) < node,
                      "check_tree: parents are not a tree: node ", node, " has the parent ", parents[node],
                      ", which does not come before it");
}

void check(const verify_inputs_params& p) {
  constexpr const char* op = verify_inputs_op::name;
  check(p.inputs);
  detail::check_pointers(op, {{"wanted", p.wanted}, {"last_token", p.last_token}});
  STEPGRAPH_EXPECTS(p.drafts || p.inputs.max_query_count == 1, op, ": drafts is null");
  STEPGRAPH_EXPECTS(p.draft_stride >= p.inputs.max_query_count - 1, op, ": draft_stride ", p.draft_stride,
                    " is less than the ", p.inputs.max_query_count - 1, " drafts of a row");
  STEPGRAPH_EXPECTS(p.vocab_size > 0, op, ": vocab_size must be positive, got ", p.vocab_size);
  detail::check_pointers(op, {{"query_counts", p.query_counts}, {"token_ids", p.token_ids}});
  STEPGRAPH_EXPECTS(p.inputs.query_counts == p.query_counts, op,
                    ": inputs.query_counts must be query_counts");
  STEPGRAPH_EXPECTS(p.inputs.lengths.delta_by_row == p.query_counts, op,
                    ": inputs.lengths.delta_by_row must be query_counts");
  if (!p.parents) return;
  STEPGRAPH_EXPECTS(p.inputs.max_query_count <= 64, op,
                    ": a tree has at most 64 nodes, inputs.max_query_count is ", p.inputs.max_query_count);
  STEPGRAPH_EXPECTS(p.parent_stride == 0 || p.parent_stride >= p.inputs.max_query_count, op,
                    ": parent_stride ", p.parent_stride, " is less than inputs.max_query_count ",
                    p.inputs.max_query_count);
  detail::check_pointers(op, {{"parent_of", p.parent_of}});
}

void verify_inputs(stream_ref at, const verify_inputs_params& params) {
  check(params);
  launch_tiles(at, verify_inputs_op{params});
}

}  // namespace stepgraph
