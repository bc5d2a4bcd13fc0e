#pragma once

#include <algorithm>
#include <cmath>

#include "examples/llama/cluster_attention.hpp"
#include "examples/llama/cublas_products.hpp"
#include "examples/llama/cuda_llama_kernels.cuh"
#include "examples/llama/fuse_inputs.cuh"
#include "examples/llama/llama_layers.hpp"
#include "examples/llama/llama_model.hpp"
#include "examples/llama/ranked_head.hpp"
#include "examples/llama/skinny_matmul.hpp"
#include "graphs/memory_resource.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::llama {

/// The forward pass of a model, whatever its type.
class forward_pass {
 public:
  virtual ~forward_pass() = default;
  virtual void forward(const step_context& step) const = 0;
  virtual bool ranks(const step_context& step) const = 0;

  virtual std::size_t scratch_bytes(const step_key& key) const = 0;
};

/// The forward pass in type T, bf16 or float. `rope`: float32 [max_context, head_size / 2, 2], cosines and
/// sines.
template <class T>
class typed_pass final : public forward_pass {
 public:
  typed_pass(device where, const llama_config& config, device_weights weights, buffer rope)
      : where_(where),
        config_(config),
        weights_(std::move(weights)),
        attention_(config.heads * config.head_size),
        qkv_(attention_ + 2 * config.kv_heads * config.head_size),
        may_fuse_(std::is_same_v<T, bf16> && config.hidden_size % 32 == 0 && attention_ % 32 == 0 &&
                  config.ffn_size % 32 == 0),
        cublas_(where),
        rope_(std::move(rope)) {
    attention_workspace_ = buffer(device_memory(where), attention_workspace_bytes());
    const stream loading(where);
    loading.ref().fill(attention_workspace_.data(), 0, attention_workspace_.bytes());
    loading.synchronize();
  }

  std::size_t scratch_bytes(const step_key& key) const override { return place(nullptr, key).bytes; }

  bool ranks(const step_context& step) const override {
    return std::is_same_v<T, bf16> && step.ranked_argmax &&
           serves(where_, config_.hidden_size, llama_model::head_lines(step.key));
  }

  void forward(const step_context& step) const override {
    scratch s = place(step.scratch.data(), step.key);
    if (step.hidden && config_.taps.empty()) s.hidden = step.hidden;  // a draft is fed from there
    cublas_.use(step.stream);
    const bool fused = fuses(step.key);
    if (weights_.fusion.weight)
      fuse_inputs(step, s, fused);
    else
      embed(step, s, fused);
    for (int l = 0; l < config_.layers; ++l) {
      layer(step, s, l, fused);
      if (step.hidden) keep_taps(step, s, l);
    }
    if (step.hidden_out && !(fused && one_state())) keep_hidden(step, s);
    head(step, s, fused);
  }

 private:
  struct scratch {
    float *logits, *hidden, *squares, *qkv, *gate_up;
    T *normed, *query, *attended, *activated, *last, *pair;
    std::size_t bytes;
  };

  bool fuses(const step_key& key) const { return may_fuse_ && key.tokens <= skinny_tokens; }

  scratch place(std::byte* at, const step_key& key) const {
    std::size_t offset = 0;
    const auto take = [&]<class U>(U*& part, std::size_t count) {
      part = reinterpret_cast<U*>(at + offset);
      offset += (count * sizeof(U) + 255) / 256 * 256;
    };
    const std::size_t n = key.tokens, lines = llama_model::head_lines(key);
    const bool fused = fuses(key);
    scratch s{};
    take(s.logits, lines * config_.vocab_size);
    take(s.hidden, n * config_.hidden_size);
    take(s.squares, fused ? n * config_.hidden_size / 8 : 0);
    take(s.qkv, fused ? 0 : n * qkv_);
    take(s.gate_up, fused ? 0 : n * 2 * config_.ffn_size);
    take(s.normed, n * config_.hidden_size);
    take(s.query, n * attention_);
    take(s.attended, n * attention_);
    take(s.activated, n * config_.ffn_size);
    take(s.last, lines * config_.hidden_size);
    take(s.pair, weights_.fusion.weight ? n * (1 + weights_.fusion.states) * config_.hidden_size : 0);
    s.bytes = offset;
    return s;
  }

  void embed(const step_context& step, const scratch& s, bool fused) const {
    run<embed_params<T>>(step, "embed", embed_kernel<T>, step.key.tokens,
                         {.embedding = static_cast<const T*>(weights_.token_embedding),
                          .token_ids = step.token_ids,
                          .hidden = s.hidden,
                          .gain = weights_.layers.front().attention_norm,
                          .x = s.normed,
                          .squares = fused ? s.squares : nullptr,
                          .hidden_size = config_.hidden_size});
  }

  /// What a draft head has in the embedding's place.
  void fuse_inputs(const step_context& step, const scratch& s, bool fused) const {
    const int tokens = step.key.tokens, hidden = config_.hidden_size, states = weights_.fusion.states;
    run<fuse_inputs_params<T>>(step, "fuse_inputs", fuse_inputs_kernel<T>, tokens,
                               {.embedding = static_cast<const T*>(weights_.token_embedding),
                                .token_ids = step.token_ids,
                                .feed = step.draft_step > 1 && ranks(step) ? step.ranked_feed : ranked_feed{},
                                .hidden_in = step.hidden_in,
                                .hidden_row = step.hidden_row,
                                .live_tokens = step.cu_seqlens_q + step.key.rows,
                                .embedding_norm = weights_.fusion.embedding_norm,
                                .hidden_norm = weights_.fusion.hidden_norm,
                                .pair = s.pair,
                                .residual = s.hidden,
                                .hidden_size = hidden,
                                .states = states,
                                .epsilon = config_.norm_epsilon});
    if constexpr (std::is_same_v<T, bf16>)
      if (fused)
        return skinny_matmul(step.stream, residual_product{.in = {.weight = as_bf16(weights_.fusion.weight),
                                                                  .rows = hidden,
                                                                  .columns = (1 + states) * hidden,
                                                                  .x = s.pair,
                                                                  .tokens = tokens},
                                                           .residual = s.hidden,
                                                           .gain = weights_.layers.front().attention_norm,
                                                           .x = s.normed,
                                                           .squares = s.squares});
    matmul(step, weights_.fusion.weight, s.pair, s.hidden, hidden, (1 + states) * hidden, tokens, false);
  }

  /// What a draft hands to its next step is its residual alone; else other states' places come before it.
  bool one_state() const { return !weights_.fusion.weight || weights_.fusion.states == 1; }

  void layer(const step_context& step, const scratch& s, int l, bool fused) const {
    if constexpr (std::is_same_v<T, bf16>)
      if (fused) return fused_layer(step, s, l);
    plain_layer(step, s, l);
  }

  void keep_taps(const step_context& step, const scratch& s, int l) const {
    for (std::size_t tap = 0; tap < config_.taps.size(); ++tap)
      if (config_.taps[tap] == l + 1)
        run<keep_tap_params>(step, "keep_tap", keep_tap_kernel<>, step.key.tokens,
                             {.residual = s.hidden,
                              .out = step.hidden + tap * config_.hidden_size,
                              .hidden_size = config_.hidden_size,
                              .states = states_of(config_)});
  }

  void keep_hidden(const step_context& step, const scratch& s) const {
    run<keep_hidden_params<float>>(step, "keep_hidden", keep_hidden_kernel<float>, step.key.rows,
                                   {.residual = s.hidden,
                                    .last_row = step.last_row,
                                    .live_rows = step.live_rows,
                                    .out_line = step.out_line,
                                    .hidden_out = step.hidden_out,
                                    .hidden_size = config_.hidden_size,
                                    .states = weights_.fusion.weight ? weights_.fusion.states : 1});
  }

  void fused_layer(const step_context& step, const scratch& s, int l) const {
    const device_layer_weights& w = weights_.layers[l];
    const bool last = l + 1 == config_.layers;
    const float* const next_gain = last ? weights_.output_norm : weights_.layers[l + 1].attention_norm;
    const int tokens = step.key.tokens, hidden = config_.hidden_size, ffn = config_.ffn_size;
    skinny_matmul(step.stream, qkv_product{.in = normed_input(s, w.qkv, qkv_, tokens),
                                           .query = s.query,
                                           .cache = step.kv->layers[l],
                                           .rope = rope_.as<const float>(),
                                           .positions = step.positions,
                                           .causal_length = step.causal_length,
                                           .out_cache_loc = step.out_cache_loc,
                                           .page_shift = step.page_shift,
                                           .heads = config_.heads,
                                           .kv_heads = config_.kv_heads,
                                           .head_size = config_.head_size});
    attend(step, s, l);
    skinny_matmul(step.stream, residual_product{.in = {.weight = as_bf16(w.attention_output),
                                                       .rows = hidden,
                                                       .columns = attention_,
                                                       .x = s.attended,
                                                       .tokens = tokens},
                                                .residual = s.hidden,
                                                .gain = w.ffn_norm,
                                                .x = s.normed,
                                                .squares = s.squares});
    skinny_matmul(step.stream,
                  gated_product{.in = normed_input(s, w.gate_up, 2 * ffn, tokens), .out = s.activated});
    skinny_matmul(step.stream,
                  residual_product{.in = {.weight = as_bf16(w.down),
                                          .rows = hidden,
                                          .columns = ffn,
                                          .x = s.activated,
                                          .tokens = tokens},
                                   .residual = s.hidden,
                                   .gain = next_gain,
                                   .x = s.normed,
                                   .squares = s.squares,
                                   .copy = {.to = last && one_state() ? step.hidden_out : nullptr,
                                            .causal_length = step.causal_length,
                                            .row_of = step.row_of,
                                            .last_row = step.last_row,
                                            .out_line = step.out_line}});
  }

  void plain_layer(const step_context& step, const scratch& s, int l) const {
    const device_layer_weights& w = weights_.layers[l];
    const int tokens = step.key.tokens, hidden = config_.hidden_size, ffn = config_.ffn_size;
    norm(step, s.hidden, w.attention_norm, s.normed, nullptr, tokens);
    matmul(step, w.qkv, s.normed, s.qkv, qkv_, hidden, tokens, false);
    rope(step, s, l);
    attend(step, s, l);
    matmul(step, w.attention_output, s.attended, s.hidden, hidden, attention_, tokens, true);
    norm(step, s.hidden, w.ffn_norm, s.normed, nullptr, tokens);
    matmul(step, w.gate_up, s.normed, s.gate_up, 2 * ffn, hidden, tokens, false);
    run<silu_params<T>>(step, "silu", silu_kernel<T>, tokens,
                        {.gate_up = s.gate_up, .out = s.activated, .ffn_size = ffn});
    matmul(step, w.down, s.activated, s.hidden, hidden, ffn, tokens, true);
  }

  void head(const step_context& step, const scratch& s, bool fused) const {
    const int lines = llama_model::head_lines(step.key);
    const std::int32_t* const source = llama_model::all_tokens_to_head(step.key) ? nullptr : step.last_row;
    if constexpr (std::is_same_v<T, bf16>) {
      if (ranks(step)) {
        if (!fused) norm(step, s.hidden, weights_.output_norm, s.last, source, lines);
        return multiply(step.stream, ranked_head{.weight = as_bf16(weights_.output),
                                                 .rows = config_.vocab_size,
                                                 .columns = config_.hidden_size,
                                                 .x = fused ? s.normed : s.last,
                                                 .tokens = lines,
                                                 .source = fused ? source : nullptr,
                                                 .ranked = step.ranked_argmax,
                                                 .line = step.out_line});
      }
      if (may_fuse_ && lines <= skinny_tokens) {
        skinny_input in = normed_input(s, weights_.output, config_.vocab_size, lines);
        in.source = source;
        if (!fused) {
          norm(step, s.hidden, weights_.output_norm, s.last, source, lines);
          in.x = s.last;
          in.source = nullptr;
          in.squares = nullptr;
        }
        return skinny_matmul(step.stream, plain_product{.in = in, .out = s.logits});
      }
    }
    norm(step, s.hidden, weights_.output_norm, s.last, source, lines);
    matmul(step, weights_.output, s.last, s.logits, config_.vocab_size, config_.hidden_size, lines, false);
  }

  static const bf16* as_bf16(const void* weight) { return static_cast<const bf16*>(weight); }

  /// The normalised residual as the input of a product.
  skinny_input normed_input(const scratch& s, const void* weight, int rows,
                            int tokens) const requires std::is_same_v<T, bf16> {
    return {.weight = as_bf16(weight),
            .rows = rows,
            .columns = config_.hidden_size,
            .x = s.normed,
            .tokens = tokens,
            .squares = s.squares,
            .epsilon = config_.norm_epsilon};
  }

  template <class Params>
  void run(const step_context& step, const char* name, void (*kernel)(const Params), int blocks,
           const Params& params) const {
    launch<Params>(step.stream, name, kernel, dim3(blocks), dim3(threads), params);
  }

  void norm(const step_context& step, const float* hidden, const float* weight, T* out,
            const std::int32_t* source, int lines) const {
    run<norm_params<T>>(step, "rms_norm", rms_norm_kernel<T>, lines,
                        {.hidden = hidden,
                         .weight = weight,
                         .out = out,
                         .source = source,
                         .hidden_size = config_.hidden_size,
                         .epsilon = config_.norm_epsilon});
  }

  /// y [tokens, rows] = or += x [tokens, columns] times the weight [rows, columns] transposed.
  void matmul(const step_context& step, const void* weight, const T* x, float* y, int rows, int columns,
              int tokens, bool accumulate) const {
    if constexpr (std::is_same_v<T, float>) {
      run<matmul_params<T>>(step, "matmul", matmul_kernel<T>, (rows + threads / 32 - 1) / (threads / 32),
                            {.weight = static_cast<const T*>(weight),
                             .x = x,
                             .y = y,
                             .rows = rows,
                             .columns = columns,
                             .tokens = tokens,
                             .accumulate = accumulate});
    } else {
      cublas_.multiply(as_bf16(weight), x, y, rows, columns, tokens, accumulate);
    }
  }

  void rope(const step_context& step, const scratch& s, int l) const {
    const kv_pages_view& cache = step.kv->layers[l];
    run<rope_params<T>>(step, "rope", rope_kernel<T>, step.key.tokens,
                        {.qkv = s.qkv,
                         .query = s.query,
                         .keys = static_cast<T*>(const_cast<void*>(cache.keys)),
                         .values = static_cast<T*>(const_cast<void*>(cache.values)),
                         .table = rope_.as<const float2>(),
                         .positions = step.positions,
                         .causal_length = step.causal_length,
                         .out_cache_loc = step.out_cache_loc,
                         .page_stride = cache.page_stride,
                         .token_stride = cache.token_stride,
                         .head_stride = cache.head_stride,
                         .page_shift = step.page_shift,
                         .heads = config_.heads,
                         .kv_heads = config_.kv_heads,
                         .head_size = config_.head_size});
  }

  paged_attention_params attention_shape(int rows, int tokens) const {
    return {.type = std::is_same_v<T, float> ? element_type::f32 : element_type::bf16,
            .page_columns = 1,
            .tokens = tokens,
            .rows = rows,
            .heads = config_.heads,
            .kv_heads = config_.kv_heads,
            .head_size = config_.head_size,
            .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_size))};
  }

  /// Enough for every bucket: what a launch needs depends on how many of a row's queries share a tile alone.
  std::size_t attention_workspace_bytes() const {
    std::size_t bytes = cluster_attention_workspace_bytes(where_);
    for (int tokens = 1; tokens <= 64; ++tokens)
      bytes = std::max(bytes, paged_attention_workspace_bytes(where_, attention_shape(1, tokens)));
    return bytes;
  }

  void attend(const step_context& step, const scratch& s, int l) const {
    paged_attention_params params = attention_shape(step.key.rows, step.key.tokens);
    params.query = s.query;
    params.output = s.attended;
    params.cache = step.kv->layers[l];
    params.page_table = step.page_table;
    params.page_table_stride = step.page_table_stride;
    params.page_columns = step.page_columns;
    params.row_of = step.row_of;
    params.causal_length = step.causal_length;
    params.page_shift = step.page_shift;
    params.faults = step.faults;
    params.cu_seqlens_q = step.cu_seqlens_q;
    params.cache_seqlens = step.cache_seqlens;
    params.tree_mask = step.ancestors;
    params.workspace = attention_workspace_.data();
    params.workspace_bytes = attention_workspace_.bytes();
    // a row's tokens at most
    const int row_tokens = !is_ragged(step.key.kind) ? 1
                           : step.key.kind == step_kind::target_verify
                               ? std::min(step.key.tokens, static_cast<int>(step.accepted.stride))
                               : step.key.tokens;
    if (fuses(step.key) && has_cluster_attention(where_, params, row_tokens))
      return cluster_attention(step.stream, params, row_tokens);
    paged_attention(step.stream, params);
  }

  device where_;
  llama_config config_;
  device_weights weights_;
  int attention_, qkv_;  // elements of a token
  bool may_fuse_;
  cublas_products cublas_;
  buffer rope_, attention_workspace_;
};

}  // namespace stepgraph::llama
