#include "kernels/metadata/kv_split_plan_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<kv_split_plan_op>(stream_ref, const kv_split_plan_op&);
}
