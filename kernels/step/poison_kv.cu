#include "kernels/sample/row_driver.cuh"
#include "kernels/step/poison_kv_op.hpp"

namespace stepgraph {
template void launch_rows_cuda<mark_live_op>(stream_ref, const mark_live_op&);
template void launch_rows_cuda<poison_kv_op>(stream_ref, const poison_kv_op&);
}  // namespace stepgraph
