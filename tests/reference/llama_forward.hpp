#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "examples/llama/llama_weights.hpp"

namespace stepgraph::reference {

/// The Llama forward pass written down plainly: one token at a time, float weights, sums in double, a
/// contiguous cache. The oracle of the llama example; of the product it uses the weights' dequantisation
/// alone.
class llama_reference {
 public:
  explicit llama_reference(const llama::llama_weights& weights);

  /// Feeds `token` at the next position; logits [vocab].
  std::vector<float> forward(int token);

  /// The same of a draft head, which is fed `state` [states, hidden] beside the token; logits [its own vocab].
  std::vector<float> forward(int token, std::span<const float> state);

  /// The state after the last layer, before the norm of the output, of the token fed last; [hidden].
  const std::vector<double>& hidden() const { return hidden_; }

  int vocab_size() const { return config_.vocab_size; }

  /// Forgets all tokens fed so far.
  void reset();

  /// Tokens fed since the start or the last reset.
  int length() const { return length_; }

 private:
  struct matrix {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::vector<float> values;  // [rows, columns]
  };
  struct layer {
    std::vector<float> attention_norm, ffn_norm;
    matrix query, key, value, attention_output, gate, up, down;
    std::vector<double> keys, values;  // [length, kv_heads * head_size], keys after rotation
  };

  std::vector<double> embed(int token) const;
  std::vector<float> run(std::vector<double> x);
  static matrix widen(const llama::tensor& weight);
  static std::vector<double> multiply(const matrix& weight, const std::vector<double>& x);
  std::vector<double> normalize(const std::vector<double>& x, const std::vector<float>& gain) const;
  void rotate(std::vector<double>& heads) const;
  std::vector<double> attend(const layer& layer, const std::vector<double>& query) const;

  llama::llama_config config_;
  matrix embedding_;
  std::vector<layer> layers_;
  std::vector<float> output_norm_, embedding_norm_, state_norm_;
  matrix output_;  // empty where the embedding serves
  matrix fusion_;  // of a draft head
  std::vector<double> hidden_;
  int length_ = 0;
};

}  // namespace stepgraph::reference
