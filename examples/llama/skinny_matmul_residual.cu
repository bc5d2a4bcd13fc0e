#include "examples/llama/skinny_matmul.cuh"

namespace stepgraph::llama {

void skinny_matmul(stream_ref at, const residual_product& product) {
  detail::launch_skinny(at, "residual_product", product);
}

}  // namespace stepgraph::llama
