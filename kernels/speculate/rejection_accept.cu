#include "kernels/sample/row_driver.cuh"
#include "kernels/speculate/rejection_accept_op.hpp"

namespace stepgraph {
template void launch_rows_cuda<rejection_accept_op>(stream_ref, const rejection_accept_op&);
}
