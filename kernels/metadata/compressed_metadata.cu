#include "kernels/metadata/compressed_metadata_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<compressed_metadata_op>(stream_ref, const compressed_metadata_op&);
}
