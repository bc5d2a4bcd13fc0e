#include "kernels/sparse/combine_top_k_and_window_op.hpp"
#include "kernels/sparse/line_driver.cuh"

namespace stepgraph {
template void launch_lines_cuda<combine_top_k_and_window_op>(stream_ref, const combine_top_k_and_window_op&);
template void launch_lines_cuda<narrow_combine_top_k_and_window_op>(
    stream_ref, const narrow_combine_top_k_and_window_op&);
}  // namespace stepgraph
