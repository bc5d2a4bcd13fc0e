#include "kernels/metadata/dsa_metadata_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<dsa_metadata_op>(stream_ref, const dsa_metadata_op&);
}
