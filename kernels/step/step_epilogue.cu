#include "kernels/step/step_epilogue_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<step_epilogue_op>(stream_ref, const step_epilogue_op&);
}
