#include "examples/llama/skinny_matmul.cuh"

namespace stepgraph::llama {

void skinny_matmul(stream_ref at, const gated_product& product) {
  detail::launch_skinny(at, "gated_product", product);
}

}  // namespace stepgraph::llama
