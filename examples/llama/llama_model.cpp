#include "examples/llama/llama_model.hpp"

#include "graphs/error.hpp"

namespace stepgraph::llama {

kv_layout llama_model::layout() const noexcept {
  return {.type = cache_type_,
          .layers = config_.layers,
          .kv_heads = config_.kv_heads,
          .head_size = config_.head_size};
}

std::vector<step_definition> llama_model::steps() const {
  std::vector<step_definition> steps;
  for (const step_kind kind : {step_kind::decode, step_kind::extend})
    steps.push_back({.kind = kind,
                     .variant = 0,
                     .body = [this](const step_context& step) { forward(step); },
                     .scratch_bytes = [this](int rows, int tokens) { return scratch_bytes(rows, tokens); }});
  return steps;
}

std::unique_ptr<llama_model> make_llama(device where, const llama_weights& weights) {
  if (where.is_host()) return make_host_llama(weights);
#if STEPGRAPH_CUDA
  return make_cuda_llama(where, weights);
#else
  throw cuda_error("make_llama: this stepgraph was built without CUDA", 0);
#endif
}

}  // namespace stepgraph::llama
