#include "kernels/step/verify_prologue_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<verify_prologue_op>(stream_ref, const verify_prologue_op&);
}
