#include "kernels/attention/split_attention.cuh"

namespace stepgraph::detail {
STEPGRAPH_SPLIT_ATTENTION(f16, 64)
}  // namespace stepgraph::detail
