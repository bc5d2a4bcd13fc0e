#include <algorithm>

#include "examples/llama/llama_layers.hpp"
#include "examples/llama/llama_model.hpp"
#include "graphs/memory_resource.hpp"

namespace stepgraph::llama {
namespace {

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

/// A model's weights on the device, in its type.
struct uploaded_weights {
  struct layer {
    buffer attention_norm, qkv, attention_output, ffn_norm, gate_up, down;
  };
  buffer embedding, output, output_norm;
  buffer fusion_embedding_norm, fusion_hidden_norm, fusion;  // of a draft head
  int fusion_states = 1;
  std::vector<layer> layers;

  template <class T>
  static uploaded_weights make(device where, const llama_weights& weights) {
    uploaded_weights made;
    const stream loading(where);
    const bool tied = weights.output.data.data() == weights.token_embedding.data.data();
    made.embedding = upload<T>(where, loading, {{weights.token_embedding}});
    if (!tied) made.output = upload<T>(where, loading, {{weights.output}});
    for (const llama_layer_weights& each : weights.layers)
      made.layers.push_back({.attention_norm = upload_floats(where, loading, each.attention_norm),
                             .qkv = upload<T>(where, loading, std::array{each.query, each.key, each.value}),
                             .attention_output = upload<T>(where, loading, {{each.attention_output}}),
                             .ffn_norm = upload_floats(where, loading, each.ffn_norm),
                             .gate_up = upload<T>(where, loading, std::array{each.gate, each.up}),
                             .down = upload<T>(where, loading, {{each.down}})});
    made.output_norm = upload_floats(where, loading, weights.output_norm);
    if (weights.fusion) {
      made.fusion_embedding_norm = upload_floats(where, loading, weights.fusion->embedding_norm);
      made.fusion_hidden_norm = upload_floats(where, loading, weights.fusion->hidden_norm);
      made.fusion = upload<T>(where, loading, {{weights.fusion->weight}});
      made.fusion_states = weights.fusion->states;
    }
    return made;
  }

  const buffer& head() const { return output.bytes() > 0 ? output : embedding; }

  /// Bytes of the matrices that one token reads.
  std::size_t matrix_bytes() const {
    std::size_t bytes = head().bytes() + fusion.bytes();
    for (const layer& each : layers)
      bytes += each.qkv.bytes() + each.attention_output.bytes() + each.gate_up.bytes() + each.down.bytes();
    return bytes;
  }

  device_weights view() const {
    device_weights seen{.token_embedding = embedding.data(),
                        .layers = {},
                        .output_norm = output_norm.as<const float>(),
                        .output = head().data(),
                        .fusion = {.embedding_norm = fusion_embedding_norm.as<const float>(),
                                   .hidden_norm = fusion_hidden_norm.as<const float>(),
                                   .weight = fusion.data(),
                                   .states = fusion_states}};
    for (const layer& each : layers)
      seen.layers.push_back({.attention_norm = each.attention_norm.as<const float>(),
                             .qkv = each.qkv.data(),
                             .attention_output = each.attention_output.data(),
                             .ffn_norm = each.ffn_norm.as<const float>(),
                             .gate_up = each.gate_up.data(),
                             .down = each.down.data()});
    return seen;
  }
};

class cuda_llama final : public llama_model {
 public:
  cuda_llama(device where, const llama_config& config, element_type type, uploaded_weights weights)
      : llama_model(config, type),
        where_(where),
        weights_(std::move(weights)),
        layers_(where, config, type, weights_.view()) {}

  device where() const noexcept override { return where_; }
  std::size_t weight_bytes() const noexcept override { return weights_.matrix_bytes(); }
  std::size_t scratch_bytes(const step_key& key) const override { return layers_.scratch_bytes(key); }

  void enqueue_logits(const step_context& step) const override {
    check_states(step);
    layers_.forward(step);
  }
  bool ranks(const step_context& step) const override { return layers_.ranks(step); }

 private:
  device where_;
  uploaded_weights weights_;
  llama_layers layers_;
};

}  // namespace

std::unique_ptr<llama_model> make_cuda_llama(device where, const llama_weights& weights) {
  STEPGRAPH_EXPECTS(weights.config.hidden_size % 8 == 0 && weights.config.ffn_size % 8 == 0,
                    "make_cuda_llama: hidden and ffn sizes must be multiples of 8, got ",
                    weights.config.hidden_size, " and ", weights.config.ffn_size);
  if (weights.layers.front().query.type == tensor_type::f32)
    return std::make_unique<cuda_llama>(where, weights.config, element_type::f32,
                                        uploaded_weights::make<float>(where, weights));
  return std::make_unique<cuda_llama>(where, weights.config, element_type::bf16,
                                      uploaded_weights::make<bf16>(where, weights));
}

}  // namespace stepgraph::llama
