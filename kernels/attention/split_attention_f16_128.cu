#include "kernels/attention/split_attention.cuh"

namespace stepgraph::detail {
STEPGRAPH_SPLIT_ATTENTION(f16, 128)
}  // namespace stepgraph::detail
