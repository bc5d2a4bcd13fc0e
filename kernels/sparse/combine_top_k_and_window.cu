#include "kernels/sparse/combine_top_k_and_window_op.hpp"
#include "kernels/sparse/l2_share.cuh"
#include "kernels/sparse/line_driver.cuh"

namespace stepgraph {
template <>
void launch_lines_cuda(stream_ref at, const combine_top_k_and_window_op& given) {
  combine_top_k_and_window_op op = given;
  if (op.p.kept < 0)
    op.p.kept = static_cast<std::int32_t>(lines_that_stay(at, std::int64_t{4} * op.p.padded_width()));
  launch_lines_shaped<combine_top_k_and_window_op, combine_top_k_and_window_op::threads,
                      combine_top_k_and_window_op::blocks_a_multiprocessor>(at, op);
}
template void launch_lines_cuda<narrow_combine_top_k_and_window_op>(
    stream_ref, const narrow_combine_top_k_and_window_op&);
}  // namespace stepgraph
