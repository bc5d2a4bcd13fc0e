#include "kernels/speculate/draft_extend_inputs_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<draft_extend_inputs_op>(stream_ref, const draft_extend_inputs_op&);
}
