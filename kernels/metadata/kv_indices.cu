#include "kernels/metadata/plain_kv_indices_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<plain_kv_indices_op>(stream_ref, const plain_kv_indices_op&);
template void launch_tiles_cuda<kv_indices_op>(stream_ref, const kv_indices_op&);
template void launch_tiles_cuda<unified_kv_indices_op>(stream_ref, const unified_kv_indices_op&);
}  // namespace stepgraph
