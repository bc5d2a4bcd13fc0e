#pragma once

#include "examples/llama/cublas_products.hpp"
#include "graphs/memory_resource.hpp"
#include "runtime/choose_tokens.hpp"

namespace stepgraph::bench {

/// What a head's product leaves.
enum class head_output { nothing, largest, logits };

/// An output head of random weights and states, by the kernels of the example's model: the one that keeps the largest
/// logits alone, or without even that; or logits, up to 64 lines by the skinny product, beyond by cuBLAS. Every line
/// has the same state, so that target and draft agree.
class round_head {
 public:
  round_head(device where, int lines, int vocab_size);

  void enqueue(const step_context& step, head_output output) const;

  /// What the last product left.
  head_logits given() const {
    return {.data = logits_.as<const float>(), .stride = vocab_size_, .vocab_size = vocab_size_};
  }

 private:
  static constexpr int hidden_size = 576;
  int vocab_size_;
  buffer weight_, x_, logits_;
  llama::cublas_products cublas_;
};

}  // namespace stepgraph::bench
