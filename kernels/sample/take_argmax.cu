#include "kernels/sample/take_argmax_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<take_argmax_op>(stream_ref, const take_argmax_op&);
}
