#include <algorithm>
#include <cmath>

#include "examples/llama/host_matmul.hpp"
#include "examples/llama/host_ops.hpp"
#include "examples/llama/llama_model.hpp"
#include "graphs/error.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::llama {
namespace {

class host_llama final : public llama_model {
 public:
  explicit host_llama(const llama_weights& weights)
      : llama_model(weights.config, element_type::f32),
        weights_(weights),
        output_(weights.output),
        rope_table_(weights.config.max_context, weights.config.head_size, weights.config.rope_base) {
    for (const llama_layer_weights& layer : weights.layers)
      layers_.push_back({.query = host_matrix(layer.query),
                         .key = host_matrix(layer.key),
                         .value = host_matrix(layer.value),
                         .attention_output = host_matrix(layer.attention_output),
                         .gate = host_matrix(layer.gate),
                         .up = host_matrix(layer.up),
                         .down = host_matrix(layer.down)});
    if (weights.fusion) fusion_ = host_matrix(weights.fusion->weight);
  }

  device where() const noexcept override { return device::host(); }

  std::size_t weight_bytes() const noexcept override {
    std::size_t bytes = output_.bytes();
    for (const layer& each : layers_)
      for (const host_matrix* matrix :
           {&each.query, &each.key, &each.value, &each.attention_output, &each.gate, &each.up, &each.down})
        bytes += matrix->bytes();
    return bytes;
  }

  std::size_t scratch_bytes(const step_key& key) const override { return place(nullptr, key).bytes; }

  void enqueue_logits(const step_context& step) const override {
    check_states(step);
    if (weights_.fusion)
      enqueue_host(step.stream, "fuse_inputs", [this, step] { fuse_inputs(step); });
    else
      enqueue_host(step.stream, "embed", [this, step] { embed(step); });
    for (int l = 0; l < config_.layers; ++l) {
      enqueue_host(step.stream, "attention_inputs", [this, step, l] { attention_inputs(step, l); });
      attend(step, l);
      enqueue_host(step.stream, "feed_forward", [this, step, l] { feed_forward(step, l); });
    }
    enqueue_host(step.stream, "output_head", [this, step] { output_head(step); });
  }

 private:
  struct layer {
    host_matrix query, key, value, attention_output, gate, up, down;
  };
  struct scratch {
    float *logits, *hidden, *normed, *query, *key, *value, *attended, *projected, *gate, *up, *last, *pair;
    std::size_t bytes;
  };

  scratch place(std::byte* at, const step_key& key) const {
    std::size_t offset = 0;
    const auto take = [&]<class T>(T*& part, std::size_t count) {
      part = reinterpret_cast<T*>(at + offset);
      offset += (count * sizeof(T) + 255) / 256 * 256;
    };
    const std::size_t n = key.tokens, lines = head_lines(key), hidden = config_.hidden_size;
    const std::size_t attention = std::size_t(config_.heads) * config_.head_size;
    const std::size_t kv = std::size_t(config_.kv_heads) * config_.head_size;
    scratch s{};
    take(s.logits, lines * config_.vocab_size);
    take(s.hidden, n * hidden);
    take(s.normed, n * hidden);
    take(s.query, n * attention);
    take(s.key, n * kv);
    take(s.value, n * kv);
    take(s.attended, n * attention);
    take(s.projected, n * hidden);
    take(s.gate, n * config_.ffn_size);
    take(s.up, n * config_.ffn_size);
    take(s.last, lines * hidden);
    take(s.pair, weights_.fusion ? n * (1 + weights_.fusion->states) * hidden : 0);
    s.bytes = offset;
    return s;
  }

  /// The step's scratch, and how many tokens are live: the model's own work is on those alone.
  std::pair<scratch, int> live(const step_context& step) const {
    scratch s = place(step.scratch.data(), step.key);
    if (step.hidden && config_.taps.empty()) s.hidden = step.hidden;  // a draft is fed from there
    return {s, step.cu_seqlens_q[step.key.rows]};
  }

  static std::span<float> lines(float* data, int count, std::int64_t width) {
    return {data, static_cast<std::size_t>(count * width)};
  }

  static void product(const host_matrix& weight, float* x, float* y, int tokens) {
    if (tokens > 0)
      matmul(weight, lines(x, tokens, weight.columns()), lines(y, tokens, weight.rows()), tokens,
             thread_pool::shared());
  }

  void normalise(float* x, const std::vector<float>& weight, float* out, int tokens) const {
    for (int t = 0; t < tokens; ++t) {
      const std::int64_t at = std::int64_t{t} * config_.hidden_size;
      rms_norm(lines(x + at, 1, config_.hidden_size), weight, config_.norm_epsilon,
               lines(out + at, 1, config_.hidden_size));
    }
  }

  void embed(const step_context& step) const {
    const auto [s, tokens] = live(step);
    for (int t = 0; t < tokens; ++t)
      dequantize_row(weights_.token_embedding, step.token_ids[t],
                     lines(s.hidden + std::int64_t{t} * config_.hidden_size, 1, config_.hidden_size));
  }

  /// A draft head's layer begins with the product of a token's embedding beside the states it is fed.
  void fuse_inputs(const step_context& step) const {
    const auto [s, tokens] = live(step);
    const std::int64_t hidden = config_.hidden_size, states = weights_.fusion->states;
    const auto width = static_cast<std::size_t>(hidden);
    for (int t = 0; t < tokens; ++t) {
      const std::span<float> out = lines(s.pair + t * (1 + states) * hidden, 1, (1 + states) * hidden);
      dequantize_row(weights_.token_embedding, step.token_ids[t], out.first(width));
      rms_norm(out.first(width), weights_.fusion->embedding_norm, config_.norm_epsilon, out.first(width));
      const std::span<const float> in{step.hidden_in + step.hidden_row[t] * states * hidden,
                                      static_cast<std::size_t>(states) * width};
      const std::span<const float> gains = weights_.fusion->hidden_norm;
      for (std::size_t at = 0; at < in.size(); at += width)
        rms_norm(in.subspan(at, width), gains.subspan(at, width), config_.norm_epsilon,
                 out.subspan(width + at, width));
    }
    product(fusion_, s.pair, s.hidden, tokens);
  }

  void attention_inputs(const step_context& step, int l) const {
    const auto [s, tokens] = live(step);
    const layer& w = layers_[l];
    normalise(s.hidden, weights_.layers[l].attention_norm, s.normed, tokens);
    product(w.query, s.normed, s.query, tokens);
    product(w.key, s.normed, s.key, tokens);
    product(w.value, s.normed, s.value, tokens);
    const int head_size = config_.head_size;
    const kv_pages_view& cache = step.kv->layers[l];
    for (int t = 0; t < tokens; ++t) {
      const std::int64_t query = std::int64_t{t} * config_.heads * head_size;
      rope(lines(s.query + query, config_.heads, head_size), rope_table_, step.positions[t]);
      const std::int64_t kv = std::int64_t{t} * config_.kv_heads * head_size;
      rope(lines(s.key + kv, config_.kv_heads, head_size), rope_table_, step.positions[t]);
      if (step.causal_length[t] <= 0) continue;
      const std::int64_t slot = step.out_cache_loc[t], in_page = (std::int64_t{1} << step.page_shift) - 1;
      const std::int64_t place =
          (slot >> step.page_shift) * cache.page_stride + (slot & in_page) * cache.token_stride;
      for (int head = 0; head < config_.kv_heads; ++head) {
        const std::int64_t to = place + head * cache.head_stride, from = kv + std::int64_t{head} * head_size;
        std::copy_n(s.key + from, head_size, static_cast<float*>(const_cast<void*>(cache.keys)) + to);
        std::copy_n(s.value + from, head_size, static_cast<float*>(const_cast<void*>(cache.values)) + to);
      }
    }
  }

  void attend(const step_context& step, int l) const {
    const scratch s = place(step.scratch.data(), step.key);
    paged_attention(step.stream, {.type = cache_type_,
                                  .query = s.query,
                                  .output = s.attended,
                                  .cache = step.kv->layers[l],
                                  .page_table = step.page_table,
                                  .page_table_stride = step.page_table_stride,
                                  .page_columns = step.page_columns,
                                  .row_of = step.row_of,
                                  .causal_length = step.causal_length,
                                  .tokens = step.key.tokens,
                                  .rows = step.key.rows,
                                  .heads = config_.heads,
                                  .kv_heads = config_.kv_heads,
                                  .head_size = config_.head_size,
                                  .page_shift = step.page_shift,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_size)),
                                  .faults = step.faults,
                                  .cu_seqlens_q = step.cu_seqlens_q,
                                  .tree_mask = step.ancestors});
  }

  void feed_forward(const step_context& step, int l) const {
    const auto [s, tokens] = live(step);
    const layer& w = layers_[l];
    product(w.attention_output, s.attended, s.projected, tokens);
    add(lines(s.hidden, tokens, config_.hidden_size), lines(s.projected, tokens, config_.hidden_size));
    normalise(s.hidden, weights_.layers[l].ffn_norm, s.normed, tokens);
    product(w.gate, s.normed, s.gate, tokens);
    product(w.up, s.normed, s.up, tokens);
    const std::span<float> gate = lines(s.gate, tokens, config_.ffn_size);
    silu_multiply(gate, lines(s.up, tokens, config_.ffn_size), gate);
    product(w.down, s.gate, s.projected, tokens);
    add(lines(s.hidden, tokens, config_.hidden_size), lines(s.projected, tokens, config_.hidden_size));
    if (step.hidden) keep_taps(step, s.hidden, l, tokens);
  }

  void keep_taps(const step_context& step, const float* residual, int l, int tokens) const {
    const std::int64_t hidden = config_.hidden_size, states = states_of(config_);
    for (std::size_t tap = 0; tap < config_.taps.size(); ++tap)
      if (config_.taps[tap] == l + 1)
        for (int t = 0; t < tokens; ++t)
          std::copy_n(residual + t * hidden, hidden,
                      step.hidden + (t * states + static_cast<std::int64_t>(tap)) * hidden);
  }

  void output_head(const step_context& step) const {
    const auto [s, tokens] = live(step);
    const bool all = all_tokens_to_head(step.key);
    const int count = all ? tokens : *step.live_rows;
    for (int line = 0; line < count; ++line)
      std::copy_n(s.hidden + std::int64_t{all ? line : step.last_row[line]} * config_.hidden_size,
                  config_.hidden_size, s.last + std::int64_t{line} * config_.hidden_size);
    if (step.hidden_out) keep_hidden(step, s.last, count);
    normalise(s.last, weights_.output_norm, s.last, count);
    product(output_, s.last, s.logits, count);
  }

  /// A draft's own states, each at the end of its line; zeros before.
  void keep_hidden(const step_context& step, const float* last, int count) const {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t before = weights_.fusion ? (weights_.fusion->states - 1) * hidden : 0;
    for (int row = 0; row < count; ++row) {
      float* const out =
          step.hidden_out + std::int64_t{step.out_line ? step.out_line[row] : row} * (before + hidden);
      std::fill_n(out, before, 0.0f);
      std::copy_n(last + row * hidden, hidden, out + before);
    }
  }

  llama_weights weights_;  // the embedding and the norms, and the file they lie in
  host_matrix output_, fusion_;
  std::vector<layer> layers_;
  rope_table rope_table_;
};

}  // namespace

std::unique_ptr<llama_model> make_host_llama(const llama_weights& weights) {
  return std::make_unique<host_llama>(weights);
}

}  // namespace stepgraph::llama
