#include "kernels/attention/warpgroup_attention.cuh"

namespace stepgraph::detail {
STEPGRAPH_WARPGROUP_ATTENTION(bf16, 64)
}  // namespace stepgraph::detail
