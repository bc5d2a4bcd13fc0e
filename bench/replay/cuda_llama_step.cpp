#include "bench/replay/cuda_llama_step.hpp"

#include "bench/device_weights.hpp"
#include "examples/llama/llama_layers.hpp"
#include "examples/llama/llama_model.hpp"
#include "runtime/choose_tokens.hpp"

namespace stepgraph::bench {
namespace {

class cuda_llama_step final : public replay_model {
 public:
  cuda_llama_step(const model_shape& shape, device where, std::uint64_t seed)
      : config_(shape.config),
        weights_(where, shape, seed),
        layers_(where, config_, element_type::bf16, weights_.view()) {}

  kv_layout layout() const override {
    return {.type = element_type::bf16,
            .layers = config_.layers,
            .kv_heads = config_.kv_heads,
            .head_size = config_.head_size};
  }
  int vocab_size() const override { return config_.vocab_size; }
  std::size_t scratch_bytes(const step_key& key) const override { return layers_.scratch_bytes(key); }

  void enqueue(const step_context& step, const step_environment&) const override {
    layers_.forward(step);
    choose_tokens(step, {.data = llama::llama_model::logits(step),
                         .stride = config_.vocab_size,
                         .vocab_size = config_.vocab_size,
                         .ranked = layers_.ranks(step)});
  }

  std::int64_t step_bytes(int rows, int tokens, std::int64_t live) const override {
    return weights_.matrix_bytes() + llama_kv_bytes(layout(), rows, tokens, live);
  }

 private:
  llama::llama_config config_;
  synthetic_weights weights_;
  llama::llama_layers layers_;
};

}  // namespace

std::unique_ptr<replay_model> make_cuda_llama_step(const model_shape& shape, device where,
                                                   std::uint64_t seed) {
  return std::make_unique<cuda_llama_step>(shape, where, seed);
}

}  // namespace stepgraph::bench
