#include "kernels/sparse/window_token_ids_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<window_token_ids_op>(stream_ref, const window_token_ids_op&);
}
