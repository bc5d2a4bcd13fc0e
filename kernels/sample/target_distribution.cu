#include "kernels/sample/row_driver.cuh"
#include "kernels/sample/target_distribution_op.hpp"

namespace stepgraph {
template void launch_rows_cuda<target_distribution_op>(stream_ref, const target_distribution_op&);
}
