#include "kernels/speculate/commit_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<commit_slots_op>(stream_ref, const commit_slots_op&);
template void launch_tiles_cuda<commit_kv_op>(stream_ref, const commit_kv_op&);
}  // namespace stepgraph
