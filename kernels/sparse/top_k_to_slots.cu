#include "kernels/sparse/line_driver.cuh"
#include "kernels/sparse/top_k_to_slots_op.hpp"

namespace stepgraph {
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<true, top_k_form::plain>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<true, top_k_form::wide>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<true, top_k_form::narrow>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<false, top_k_form::plain>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<false, top_k_form::wide>&);
template void launch_lines_cuda(stream_ref, const top_k_to_slots_op_of<false, top_k_form::narrow>&);
}  // namespace stepgraph
