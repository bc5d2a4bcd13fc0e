#include "kernels/sparse/index_k_gather.cuh"
#include "kernels/sparse/line_driver.cuh"

namespace stepgraph {
template void launch_lines_cuda<set_k_and_s_op>(stream_ref, const set_k_and_s_op&);

template <>
void launch_tiles_cuda<get_k_and_s_op>(stream_ref at, const get_k_and_s_op& op) {
  launch_gather<gather_shape<64, 8, 16, reuse::neither>>(at, op);
}
}  // namespace stepgraph
