#include "bench/device_weights.hpp"

#include "bench/attention_kernels.hpp"

namespace stepgraph::bench {

synthetic_weights::synthetic_weights(device where, const model_shape& shape, std::uint64_t seed)
    : at_(where), seed_(static_cast<std::uint32_t>(seed)) {
  const llama::llama_config& c = shape.config;
  const std::int64_t hidden = c.hidden_size, attention = std::int64_t{c.heads} * c.head_size,
                     kv = std::int64_t{c.kv_heads} * c.head_size, ffn = c.ffn_size;
  view_.token_embedding = matrix(c.vocab_size, hidden);
  view_.output = shape.tied ? view_.token_embedding : matrix(c.vocab_size, hidden);
  view_.output_norm = ones(hidden);
  for (int l = 0; l < c.layers; ++l)
    view_.layers.push_back({.attention_norm = ones(hidden),
                            .qkv = matrix(attention + 2 * kv, hidden),
                            .attention_output = matrix(hidden, attention),
                            .ffn_norm = ones(hidden),
                            .gate_up = matrix(2 * ffn, hidden),
                            .down = matrix(hidden, ffn)});
  matrix_bytes_ = 2 * (c.vocab_size * hidden + c.layers * hidden * (2 * attention + 2 * kv + 3 * ffn));
  at_.synchronize();
}

const void* synthetic_weights::matrix(std::int64_t rows, std::int64_t columns) {
  buffer& made = blocks_.emplace_back(device_memory(at_.where()), rows * columns * 2);
  fill_random(at_, made.data(), rows * columns, ++seed_);
  return made.data();
}

const float* synthetic_weights::ones(std::int64_t count) {
  const std::vector<float> values(count, 1.0f);
  buffer& made = blocks_.emplace_back(device_memory(at_.where()), count * sizeof(float));
  at_.ref().copy(made.data(), values.data(), count * sizeof(float));
  at_.synchronize();
  return made.as<const float>();
}

}  // namespace stepgraph::bench
