#include "examples/llama/skinny_matmul.cuh"

namespace stepgraph::llama {

void skinny_matmul(stream_ref at, const plain_product& product) {
  detail::launch_skinny(at, "plain_product", product);
}

}  // namespace stepgraph::llama
