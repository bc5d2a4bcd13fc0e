#include "kernels/sparse/line_driver.cuh"
#include "kernels/sparse/top_k_to_slots_op.hpp"

namespace stepgraph {
template void launch_lines_cuda<top_k_to_slots_op>(stream_ref, const top_k_to_slots_op&);
}
