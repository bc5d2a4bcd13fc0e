#include "kernels/step/read_fence_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<read_fence_op>(stream_ref, const read_fence_op&);
}
