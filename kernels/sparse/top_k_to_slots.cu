#include "kernels/sparse/line_driver.cuh"
#include "kernels/sparse/top_k_to_slots_op.hpp"

namespace stepgraph {
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<true, true>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<true, false>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<false, true>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<false, false>&);
}  // namespace stepgraph
