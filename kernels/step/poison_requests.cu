#include "kernels/sample/row_driver.cuh"
#include "kernels/step/poison_requests_op.hpp"

namespace stepgraph {
template void launch_rows_cuda<poison_requests_op>(stream_ref, const poison_requests_op&);
}
