#include <cublas_v2.h>

#include <algorithm>

#include "examples/llama/cuda_llama_kernels.cuh"
#include "examples/llama/host_ops.hpp"
#include "examples/llama/llama_model.hpp"
#include "graphs/memory_resource.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::llama {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw cuda_error(message(call, ": ", cublasGetStatusString(status)), static_cast<int>(status));
}

/// Copies host values to the device in the model's type.
template <class T>
buffer upload(device where, stream_ref at, std::span<const tensor> parts) {
  const std::int64_t columns = parts.front().columns;
  std::int64_t rows = 0;
  for (const tensor& part : parts) rows += part.rows;
  std::vector<T> values(rows * columns);
  std::vector<float> line(columns);
  T* out = values.data();
  for (const tensor& part : parts)
    for (std::int64_t row = 0; row < part.rows; ++row) {
      dequantize_row(part, row, line);
      out = std::transform(line.begin(), line.end(), out, [](float value) { return from_float<T>(value); });
    }
  buffer made(device_memory(where), values.size() * sizeof(T));
  at.copy(made.data(), values.data(), made.bytes());
  at.synchronize();
  return made;
}

buffer upload_floats(device where, stream_ref at, const std::vector<float>& values) {
  buffer made(device_memory(where), values.size() * sizeof(float));
  at.copy(made.data(), values.data(), made.bytes());
  at.synchronize();
  return made;
}

template <class T>
class cuda_llama final : public llama_model {
 public:
  cuda_llama(device where, const llama_weights& weights)
      : llama_model(weights.config, std::is_same_v<T, float> ? element_type::f32 : element_type::bf16),
        where_(where),
        workspace_(device_memory(where), 32 << 20) {
    const stream loading(where);
    const bool tied = weights.output.data.data() == weights.token_embedding.data.data();
    embedding_ = upload<T>(where, loading, {{weights.token_embedding}});
    if (!tied) output_ = upload<T>(where, loading, {{weights.output}});
    for (const llama_layer_weights& layer : weights.layers)
      layers_.push_back({.attention_norm = upload_floats(where, loading, layer.attention_norm),
                         .qkv = upload<T>(where, loading, std::array{layer.query, layer.key, layer.value}),
                         .attention_output = upload<T>(where, loading, {{layer.attention_output}}),
                         .ffn_norm = upload_floats(where, loading, layer.ffn_norm),
                         .gate_up = upload<T>(where, loading, std::array{layer.gate, layer.up}),
                         .down = upload<T>(where, loading, {{layer.down}})});
    output_norm_ = upload_floats(where, loading, weights.output_norm);
    rope_table_ = upload_floats(where, loading, rope_values());
    attention_workspace_ = buffer(device_memory(where), attention_workspace_bytes());
    loading.ref().fill(attention_workspace_.data(), 0, attention_workspace_.bytes());
    loading.synchronize();
    check_cublas(cublasCreate(&cublas_), "cublasCreate");
    check_cublas(cublasSetWorkspace(cublas_, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
  }
  ~cuda_llama() override { (void)cublasDestroy(cublas_); }

  device where() const noexcept override { return where_; }

  std::size_t weight_bytes() const noexcept override {
    std::size_t bytes = output().bytes();
    for (const layer& each : layers_)
      bytes += each.qkv.bytes() + each.attention_output.bytes() + each.gate_up.bytes() + each.down.bytes();
    return bytes;
  }

  std::size_t scratch_bytes(const step_key& key) const override { return place(nullptr, key).bytes; }

  void forward(const step_context& step) const override {
    scratch s = place(step.scratch.data(), step.key);
    if (step.hidden) s.hidden = step.hidden;  // a draft is fed from there
    const int tokens = step.key.tokens, hidden = config_.hidden_size, ffn = config_.ffn_size;
    const int attention = config_.heads * config_.head_size;
    const int qkv = attention + 2 * config_.kv_heads * config_.head_size;
    check_cublas(cublasSetStream(cublas_, static_cast<cudaStream_t>(step.stream.native())),
                 "cublasSetStream");
    // cublasSetStream forgets the workspace
    check_cublas(cublasSetWorkspace(cublas_, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");

    run<embed_params<T>>(step, "embed", embed_kernel<T>, tokens,
                         {.embedding = embedding_.as<const T>(),
                          .token_ids = step.token_ids,
                          .hidden = s.hidden,
                          .hidden_size = hidden});
    for (int l = 0; l < config_.layers; ++l) {
      const layer& w = layers_[l];
      norm(step, s.hidden, w.attention_norm, s.normed, nullptr, tokens);
      matmul(step, w.qkv, s.normed, s.qkv, qkv, hidden, tokens, false);
      rope(step, s, l);
      attend(step, s, l);
      matmul(step, w.attention_output, s.attended, s.hidden, hidden, attention, tokens, true);
      norm(step, s.hidden, w.ffn_norm, s.normed, nullptr, tokens);
      matmul(step, w.gate_up, s.normed, s.gate_up, 2 * ffn, hidden, tokens, false);
      run<silu_params<T>>(step, "silu", silu_kernel<T>, tokens,
                          {.gate_up = s.gate_up, .out = s.activated, .ffn_size = ffn});
      matmul(step, w.down, s.activated, s.hidden, hidden, ffn, tokens, true);
    }
    const int lines = head_lines(step.key);
    norm(step, s.hidden, output_norm_, s.last, all_tokens_to_head(step.key) ? nullptr : step.last_row, lines);
    matmul(step, output(), s.last, s.logits, config_.vocab_size, hidden, lines, false);
    emit(step);
  }

 private:
  struct layer {
    buffer attention_norm, qkv, attention_output, ffn_norm, gate_up, down;
  };
  struct scratch {
    float *logits, *hidden, *qkv, *gate_up;
    T *normed, *query, *attended, *activated, *last;
    std::size_t bytes;
  };

  std::vector<float> rope_values() const {
    const rope_table table(config_.max_context, config_.head_size, config_.rope_base);
    std::vector<float> values;
    for (int position = 0; position < config_.max_context; ++position)
      values.insert(values.end(), table.row(position).begin(), table.row(position).end());
    return values;
  }

  const buffer& output() const noexcept { return output_.bytes() > 0 ? output_ : embedding_; }

  scratch place(std::byte* at, const step_key& key) const {
    std::size_t offset = 0;
    const auto take = [&]<class U>(U*& part, std::size_t count) {
      part = reinterpret_cast<U*>(at + offset);
      offset += (count * sizeof(U) + 255) / 256 * 256;
    };
    const std::size_t n = key.tokens, lines = head_lines(key),
                      attention = std::size_t(config_.heads) * config_.head_size;
    scratch s{};
    take(s.logits, lines * config_.vocab_size);
    take(s.hidden, n * config_.hidden_size);
    take(s.qkv, n * (attention + 2ul * config_.kv_heads * config_.head_size));
    take(s.gate_up, n * 2 * config_.ffn_size);
    take(s.normed, n * config_.hidden_size);
    take(s.query, n * attention);
    take(s.attended, n * attention);
    take(s.activated, n * config_.ffn_size);
    take(s.last, lines * config_.hidden_size);
    s.bytes = offset;
    return s;
  }

  template <class Params>
  void run(const step_context& step, const char* name, void (*kernel)(const Params), int blocks,
           const Params& params) const {
    launch<Params>(step.stream, name, kernel, dim3(blocks), dim3(threads), params);
  }

  void norm(const step_context& step, const float* hidden, const buffer& weight, T* out,
            const std::int32_t* source, int lines) const {
    run<norm_params<T>>(step, "rms_norm", rms_norm_kernel<T>, lines,
                        {.hidden = hidden,
                         .weight = weight.as<const float>(),
                         .out = out,
                         .source = source,
                         .hidden_size = config_.hidden_size,
                         .epsilon = config_.norm_epsilon});
  }

  /// y [tokens, rows] = or += x [tokens, columns] times the weight [rows, columns] transposed.
  void matmul(const step_context& step, const buffer& weight, const T* x, float* y, int rows, int columns,
              int tokens, bool accumulate) const {
    constexpr int few = 8;  // tokens up to which reading the weights is all that costs
    if (std::is_same_v<T, float> || tokens <= few) {
      run<matmul_params<T>>(step, "matmul", matmul_kernel<T>, (rows + threads / 32 - 1) / (threads / 32),
                            {.weight = weight.as<const T>(),
                             .x = x,
                             .y = y,
                             .rows = rows,
                             .columns = columns,
                             .tokens = tokens,
                             .accumulate = accumulate});
      return;
    }
    const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    check_cublas(cublasGemmEx(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, rows, tokens, columns, &one, weight.data(),
                              CUDA_R_16BF, columns, x, CUDA_R_16BF, columns, &beta, y, CUDA_R_32F, rows,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
  }

  void rope(const step_context& step, const scratch& s, int l) const {
    const kv_pages_view& cache = step.kv->layers[l];
    run<rope_params<T>>(step, "rope", rope_kernel<T>, step.key.tokens,
                        {.qkv = s.qkv,
                         .query = s.query,
                         .keys = static_cast<T*>(const_cast<void*>(cache.keys)),
                         .values = static_cast<T*>(const_cast<void*>(cache.values)),
                         .table = rope_table_.as<const float2>(),
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
    return {.type = cache_type_,
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
    std::size_t bytes = 0;
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
    paged_attention(step.stream, params);
  }

  device where_;
  buffer workspace_, attention_workspace_, embedding_, output_, output_norm_, rope_table_;
  std::vector<layer> layers_;
  cublasHandle_t cublas_ = nullptr;
};

}  // namespace

std::unique_ptr<llama_model> make_cuda_llama(device where, const llama_weights& weights) {
  STEPGRAPH_EXPECTS(weights.config.hidden_size % 8 == 0 && weights.config.ffn_size % 8 == 0,
                    "make_cuda_llama: hidden and ffn sizes must be multiples of 8, got ",
                    weights.config.hidden_size, " and ", weights.config.ffn_size);
  if (weights.layers.front().query.type == tensor_type::f32)
    return std::make_unique<cuda_llama<float>>(where, weights);
  return std::make_unique<cuda_llama<bf16>>(where, weights);
}

}  // namespace stepgraph::llama
