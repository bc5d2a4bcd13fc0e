#include "bench/replay/models.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "bench/replay/cuda_llama_step.hpp"
#include "bench/replay/sparse_model.hpp"
#include "examples/llama/llama_model.hpp"
#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

using llama::llama_config;

/// splitmix64; four weights come out of a word.
class word_stream {
 public:
  explicit word_stream(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// Matrix of bfloat16 of random sign and mantissa, whose exponent keeps activations' size over `columns` sums.
void fill_weights(std::span<std::uint16_t> values, std::int64_t columns, word_stream& random) {
  const int exponent = 127 + static_cast<int>(std::floor(-0.5 * std::log2(double(columns))));
  const auto fixed = static_cast<std::uint16_t>(exponent << 7);
  for (std::size_t i = 0; i < values.size(); i += 4) {
    std::uint64_t word = random.next();
    for (std::size_t k = i; k < std::min(i + 4, values.size()); ++k, word >>= 16)
      values[k] = static_cast<std::uint16_t>((word & 0x807f) | fixed);
  }
}

/// All layers share one layer's bytes: on the host a large model would not fit otherwise.
llama::llama_weights synthetic_weights(const model_shape& shape, std::uint64_t seed) {
  const llama_config& c = shape.config;
  const std::int64_t hidden = c.hidden_size, query = std::int64_t{c.heads} * c.head_size,
                     kv = std::int64_t{c.kv_heads} * c.head_size, ffn = c.ffn_size, vocab = c.vocab_size;
  const std::int64_t layer = hidden * (2 * query + 2 * kv + 3 * ffn);
  auto storage = std::make_shared<std::vector<std::uint16_t>>(layer + vocab * hidden * (shape.tied ? 1 : 2));
  word_stream random(seed);
  std::size_t used = 0;
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    const std::span<std::uint16_t> values(storage->data() + used, rows * columns);
    used += values.size();
    fill_weights(values, columns, random);
    return llama::tensor{llama::tensor_type::bf16, rows, columns, std::as_bytes(values)};
  };
  llama::llama_weights weights;
  weights.config = c;
  weights.token_embedding = matrix(vocab, hidden);
  const std::vector<float> ones(hidden, 1.0f);
  weights.layers.assign(c.layers, {.attention_norm = ones,
                                   .query = matrix(query, hidden),
                                   .key = matrix(kv, hidden),
                                   .value = matrix(kv, hidden),
                                   .attention_output = matrix(hidden, query),
                                   .ffn_norm = ones,
                                   .gate = matrix(ffn, hidden),
                                   .up = matrix(ffn, hidden),
                                   .down = matrix(hidden, ffn)});
  weights.output_norm = ones;
  weights.output = shape.tied ? weights.token_embedding : matrix(vocab, hidden);
  weights.storage = std::move(storage);
  return weights;
}

class host_llama_step final : public replay_model {
 public:
  explicit host_llama_step(std::unique_ptr<llama::llama_model> model) : model_(std::move(model)) {}
  kv_layout layout() const override { return model_->layout(); }
  int vocab_size() const override { return model_->config().vocab_size; }
  std::size_t scratch_bytes(const step_key& key) const override { return model_->scratch_bytes(key); }
  void enqueue(const step_context& step, const step_environment&) const override { model_->forward(step); }
  std::int64_t step_bytes(int rows, int tokens, std::int64_t live) const override {
    return static_cast<std::int64_t>(model_->weight_bytes()) + llama_kv_bytes(layout(), rows, tokens, live);
  }

 private:
  std::unique_ptr<llama::llama_model> model_;
};

}  // namespace

std::int64_t llama_kv_bytes(const kv_layout& kv, int rows, int tokens, std::int64_t live) {
  const std::int64_t token_bytes = 2l * kv.layers * kv.kv_heads * kv.head_size * size_of(kv.type);
  return (rows * live + tokens) * token_bytes;
}

std::int64_t model_bytes(const model_shape& shape, std::int64_t width, bool on_host) {
  const llama_config& c = shape.config;
  if (shape.is_sparse()) return 0;
  const std::int64_t hidden = c.hidden_size;
  const std::int64_t layer = hidden * c.head_size * (2 * c.heads + 2 * c.kv_heads) + 3 * hidden * c.ffn_size;
  const std::int64_t weights = c.layers * layer + c.vocab_size * hidden * (shape.tied ? 1 : 2);
  // note: the host keeps the layers' shared bytes and what its products unpack them to
  return (on_host ? 4 : 2) * weights + width * c.head_size * std::int64_t{sizeof(float)};
}

std::unique_ptr<replay_model> make_model(const model_shape& shape, std::int64_t width, device where,
                                         std::uint64_t seed) {
  if (shape.is_sparse()) return make_sparse_model(shape, width);
  model_shape sized = shape;
  sized.config.max_context = static_cast<int>(width);
#if STEPGRAPH_CUDA
  if (!where.is_host()) return make_cuda_llama_step(sized, where, seed);
#endif
  return std::make_unique<host_llama_step>(llama::make_llama(where, synthetic_weights(sized, seed)));
}

}  // namespace stepgraph::bench
