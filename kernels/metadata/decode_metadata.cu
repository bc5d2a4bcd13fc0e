#include "kernels/metadata/decode_metadata_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<plain_decode_metadata_op>(stream_ref, const plain_decode_metadata_op&);
template void launch_tiles_cuda<decode_metadata_op>(stream_ref, const decode_metadata_op&);
}  // namespace stepgraph
