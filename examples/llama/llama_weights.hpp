#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stepgraph::llama {

/// Shape and constants of a Llama-architecture model.
struct llama_config {
  int layers = 0;
  int hidden_size = 0;
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_size = 0;
  int ffn_size = 0;
  int vocab_size = 0;
  int max_context = 0;  // tokens
  float rope_base = 10000.0f;
  float norm_epsilon = 1e-5f;
  std::vector<int>
      taps{};  // layers whose residuals a draft is fed, ascending, 1 is the first; none: the last
};

/// Residuals that a token leaves for a draft: a line of this many times `hidden_size`, in the order of the taps.
inline int states_of(const llama_config& config) {
  return config.taps.empty() ? 1 : static_cast<int>(config.taps.size());
}

/// Element types a weight may have; the quantised ones are GGUF's blocks of 32 along a row.
enum class tensor_type { f32, f16, bf16, q4_0, q4_1, q8_0 };

/// A weight matrix [rows, columns], row-major, `data` in `type`'s own layout (y = W x has x of length
/// columns). Non-owning: the bytes belong to `llama_weights::storage`.
struct tensor {
  tensor_type type = tensor_type::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::span<const std::byte> data;
};

/// Bytes that one row of `columns` elements takes; `columns` is a multiple of 32 for quantised types.
std::size_t row_bytes(tensor_type type, std::int64_t columns);

/// Writes one row of `weight` as float, `out` [columns].
void dequantize_row(const tensor& weight, std::int64_t row, std::span<float> out);

struct llama_layer_weights {
  std::vector<float> attention_norm;  // [hidden]
  tensor query;                       // [heads * head_size, hidden]; rotary pairs are neighbours (2i, 2i + 1)
  tensor key;                         // [kv_heads * head_size, hidden]; pairs as in query
  tensor value;                       // [kv_heads * head_size, hidden]
  tensor attention_output;            // [hidden, heads * head_size]
  std::vector<float> ffn_norm;        // [hidden]
  tensor gate;                        // [ffn, hidden]
  tensor up;                          // [ffn, hidden]
  tensor down;                        // [hidden, ffn]
};

/// What a draft head has before its layer: a product of normalised lines side by side, a token's embedding and the
/// hidden states that it is fed, each normalised by itself. A state of its own stands in the last one's place, and
/// the others are zeros.
struct input_fusion {
  std::vector<float> embedding_norm;  // [hidden]
  std::vector<float> hidden_norm;     // [states, hidden]
  tensor weight;  // [hidden, (1 + states) * hidden]: columns of the embedding, then of the states
  int states = 1;
};

/// All weights of one model, as the file (or the generator) has them.
struct llama_weights {
  llama_config config;
  tensor token_embedding;  // [vocab, hidden]
  std::vector<llama_layer_weights> layers;
  std::vector<float> output_norm;      // [hidden]
  tensor output;                       // [vocab, hidden]; the embedding itself where the model ties them
  std::optional<input_fusion> fusion;  // of a draft head; the embedding then has the target's rows
  std::shared_ptr<const void> storage;
};

/// A small model with seeded random weights (float32, tied output), for tests: no file needed.
llama_weights make_tiny_weights(std::uint64_t seed, const llama_config& config);

/// The default shape of the tiny model: 2 layers, hidden 128, 4 query and 2 KV heads of 64. Quick, yet with
/// grouped queries, a head size that every attention path has and a vocabulary that is no power of two.
llama_config tiny_config();

}  // namespace stepgraph::llama
