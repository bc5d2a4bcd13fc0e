#include "kernels/speculate/finish_rows_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<finish_rows_op>(stream_ref, const finish_rows_op&);
}
