#include "kernels/sample/row_driver.cuh"
#include "kernels/speculate/greedy_logprobs_op.hpp"

namespace stepgraph {
template void launch_rows_cuda<greedy_logprobs_op>(stream_ref, const greedy_logprobs_op&);
}
