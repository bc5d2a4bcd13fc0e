#include "kernels/metadata/spec_page_table_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph {
template void launch_tiles_cuda<spec_page_table_op>(stream_ref, const spec_page_table_op&);
}
