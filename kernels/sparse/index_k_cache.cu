#include "kernels/sparse/index_k_gather.cuh"
#include "kernels/sparse/line_driver.cuh"

namespace stepgraph {
template void launch_lines_cuda<set_k_and_s_op>(stream_ref, const set_k_and_s_op&);

template <>
void launch_tiles_cuda<get_k_and_s_op>(stream_ref at, const get_k_and_s_op& op) {
  // beside lines that stay, what is first to leave goes before it has been of use
  if (op.p.kept > 0)
    launch_gather<gather_shape<128, 4, 8, reuse::both>>(at, op);
  else
    launch_gather<gather_shape<128, 4, 8, reuse::neither>>(at, op);
}
}  // namespace stepgraph
