#include "kernels/metadata/token_inputs_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<token_inputs_op>(stream_ref, const token_inputs_op&);
}
