#include "kernels/metadata/plain_dsa_metadata_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<plain_dsa_metadata_op>(stream_ref, const plain_dsa_metadata_op&);
template void launch_tiles_cuda<dsa_metadata_op>(stream_ref, const dsa_metadata_op&);
}  // namespace stepgraph
