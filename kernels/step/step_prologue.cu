#include "kernels/step/step_prologue_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<step_prologue_op>(stream_ref, const step_prologue_op&);
}
