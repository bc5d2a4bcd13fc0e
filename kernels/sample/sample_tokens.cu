#include "kernels/sample/row_driver.cuh"
#include "kernels/sample/sample_tokens_op.hpp"

namespace stepgraph {
template void launch_rows_cuda<sample_tokens_op>(stream_ref, const sample_tokens_op&);
}
