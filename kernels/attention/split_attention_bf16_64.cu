#include "kernels/attention/split_attention.cuh"

namespace stepgraph::detail {
STEPGRAPH_SPLIT_ATTENTION(bf16, 64)
}  // namespace stepgraph::detail
