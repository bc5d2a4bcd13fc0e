#include "kernels/step/step_clock_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<step_clock_op>(stream_ref, const step_clock_op&);
}
