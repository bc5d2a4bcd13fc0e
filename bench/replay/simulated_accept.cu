#include "bench/replay/simulated_accept_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<bench::simulated_accept_op>(stream_ref, const bench::simulated_accept_op&);
}
