#include "bench/replay/cuda_llama_step.hpp"

#include <vector>

#include "bench/replay/device_work.hpp"
#include "examples/llama/llama_layers.hpp"
#include "examples/llama/llama_model.hpp"
#include "graphs/memory_resource.hpp"
#include "runtime/choose_tokens.hpp"

namespace stepgraph::bench {
namespace {

/// Random matrices and gains of one.
class device_filler {
 public:
  device_filler(device where, std::uint64_t seed) : at_(where), seed_(static_cast<std::uint32_t>(seed)) {}

  const void* matrix(std::int64_t rows, std::int64_t columns) {
    buffer& made = blocks_.emplace_back(device_memory(at_.where()), rows * columns * 2);
    fill_device(at_, made.data(), rows * columns, ++seed_);
    return made.data();
  }
  const float* ones(std::int64_t count) {
    const std::vector<float> values(count, 1.0f);
    buffer& made = blocks_.emplace_back(device_memory(at_.where()), count * sizeof(float));
    at_.ref().copy(made.data(), values.data(), count * sizeof(float));
    at_.synchronize();
    return made.as<const float>();
  }

 private:
  stream at_;
  std::uint32_t seed_;
  std::vector<buffer> blocks_;
};

class cuda_llama_step final : public replay_model {
 public:
  cuda_llama_step(const model_shape& shape, device where, std::uint64_t seed)
      : config_(shape.config),
        filler_(where, seed),
        layers_(where, config_, element_type::bf16, weights(shape)) {}

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
                         .vocab_size = config_.vocab_size});
  }

  std::int64_t step_bytes(int rows, int tokens, std::int64_t live) const override {
    return weight_bytes_ + llama_kv_bytes(layout(), rows, tokens, live);
  }

 private:
  llama::device_weights weights(const model_shape& shape) {
    const llama::llama_config& c = config_;
    const std::int64_t hidden = c.hidden_size, attention = std::int64_t{c.heads} * c.head_size,
                       kv = std::int64_t{c.kv_heads} * c.head_size, ffn = c.ffn_size;
    llama::device_weights made;
    made.token_embedding = filler_.matrix(c.vocab_size, hidden);
    made.output = shape.tied ? made.token_embedding : filler_.matrix(c.vocab_size, hidden);
    made.output_norm = filler_.ones(hidden);
    for (int l = 0; l < c.layers; ++l)
      made.layers.push_back({.attention_norm = filler_.ones(hidden),
                             .qkv = filler_.matrix(attention + 2 * kv, hidden),
                             .attention_output = filler_.matrix(hidden, attention),
                             .ffn_norm = filler_.ones(hidden),
                             .gate_up = filler_.matrix(2 * ffn, hidden),
                             .down = filler_.matrix(hidden, ffn)});
    weight_bytes_ = 2 * (c.vocab_size * hidden + c.layers * hidden * (2 * attention + 2 * kv + 3 * ffn));
    return made;
  }

  llama::llama_config config_;
  std::int64_t weight_bytes_ = 0;
  device_filler filler_;
  llama::llama_layers layers_;
};

}  // namespace

std::unique_ptr<replay_model> make_cuda_llama_step(const model_shape& shape, device where,
                                                   std::uint64_t seed) {
  return std::make_unique<cuda_llama_step>(shape, where, seed);
}

}  // namespace stepgraph::bench
