#include "examples/llama/skinny_matmul.cuh"

namespace stepgraph::llama {

void skinny_matmul(stream_ref at, const qkv_product& product) {
  detail::launch_skinny(at, "qkv_product", product);
}

}  // namespace stepgraph::llama
