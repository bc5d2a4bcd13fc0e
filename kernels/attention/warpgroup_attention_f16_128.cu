#include "kernels/attention/warpgroup_attention.cuh"

namespace stepgraph::detail {
STEPGRAPH_WARPGROUP_ATTENTION(f16, 128)
}  // namespace stepgraph::detail
