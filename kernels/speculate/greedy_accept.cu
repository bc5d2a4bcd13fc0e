#include "kernels/speculate/greedy_accept_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<greedy_accept_op>(stream_ref, const greedy_accept_op&);
}
