#include "kernels/sample/row_driver.cuh"
#include "kernels/step/poison_kv_op.hpp"

namespace stepgraph {
template void launch_rows_cuda<poison_kv_op>(stream_ref, const poison_kv_op&);
}
