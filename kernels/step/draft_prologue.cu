#include "kernels/step/draft_prologue_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<draft_prologue_op>(stream_ref, const draft_prologue_op&);
}
