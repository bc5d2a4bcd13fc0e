#include "kernels/speculate/verify_inputs_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<verify_inputs_op>(stream_ref, const verify_inputs_op&);
}
