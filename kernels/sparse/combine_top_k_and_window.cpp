#include "kernels/sparse/combine_top_k_and_window.hpp"

#include "kernels/check.hpp"
#include "kernels/sparse/combine_top_k_and_window_op.hpp"

namespace stepgraph {

void combine_top_k_and_window(stream_ref at, const combine_top_k_and_window_params& p) {
  constexpr const char* op = combine_top_k_and_window_op::name;
  detail::check_lengths(op, p.lengths);
  detail::check_pointers(op, {{"query_start_loc", p.query_start_loc}});
  STEPGRAPH_EXPECTS(p.tokens > 0, op, ": tokens must be positive, got ", p.tokens);
  STEPGRAPH_EXPECTS(p.ratio >= 1, op, ": ratio must be at least 1, got ", p.ratio);
  STEPGRAPH_EXPECTS(p.topk >= 0, op, ": topk must not be negative, got ", p.topk);
  STEPGRAPH_EXPECTS(p.window >= 0, op, ": window must not be negative, got ", p.window);
  STEPGRAPH_EXPECTS(std::int64_t{p.topk} + p.window > 0, op, ": topk and window are both 0");
  STEPGRAPH_EXPECTS(std::int64_t{p.topk} + p.window < INT32_MAX - (1 << 16), op, ": topk ", p.topk,
                    " and window ", p.window, " are too many columns");
  if (p.topk > 0) {
    detail::check_pointers(op, {{"topk_indices", p.topk_indices.data}});
    STEPGRAPH_EXPECTS(!p.topk_indices.wide, op, ": topk_indices must be int32, got int64");
    STEPGRAPH_EXPECTS(p.topk_columns >= p.topk, op, ": topk_indices has ", p.topk_columns,
                      " columns, fewer than topk ", p.topk);
    STEPGRAPH_EXPECTS(p.topk_columns <= INT32_MAX - (1 << 16), op, ": topk_indices has ", p.topk_columns,
                      " columns, too many");
    STEPGRAPH_EXPECTS(p.topk_stride >= p.topk_columns || p.tokens == 1, op, ": topk_stride ", p.topk_stride,
                      " is less than its ", p.topk_columns, " columns");
    detail::check_pointers(op, {{"compressed_base", p.compressed_base}});
  }
  detail::check_pointers(op, {{"gather_len", p.gather_len},
                              {"swa_base", p.swa_base},
                              {"length", p.length},
                              {"indices", p.indices.data}});
  STEPGRAPH_EXPECTS(p.indices.skip == -1, op, ": indices.skip must be -1, got ", p.indices.skip);
  detail::check_table(op, "indices", p.indices, p.tokens, p.padded_width());
  const bool wide = (p.topk & 3) == 0 && (p.topk == 0 || aligned16(p.topk_indices.data)) &&
                    (p.topk_stride & 3) == 0 && aligned16(p.indices.data) && (p.indices.stride & 3) == 0;
  if (wide)
    launch_lines(at, combine_top_k_and_window_op::with(p));
  else
    launch_lines(at, narrow_combine_top_k_and_window_op::with(p));
}

}  // namespace stepgraph
