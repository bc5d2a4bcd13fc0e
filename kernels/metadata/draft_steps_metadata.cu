#include "kernels/metadata/draft_steps_metadata_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<draft_steps_metadata_op>(stream_ref, const draft_steps_metadata_op&);
}
