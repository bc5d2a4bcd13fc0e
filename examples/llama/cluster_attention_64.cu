#include "examples/llama/cluster_attention.cuh"

namespace stepgraph::llama::detail {
STEPGRAPH_CLUSTER_ATTENTION(64, 1)
STEPGRAPH_CLUSTER_ATTENTION(64, 2)
}  // namespace stepgraph::llama::detail
