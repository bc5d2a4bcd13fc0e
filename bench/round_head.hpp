#pragma once

#include "examples/llama/cublas_products.hpp"
#include "graphs/memory_resource.hpp"
#include "runtime/choose_tokens.hpp"

namespace stepgraph::bench {

/// An output head of random weights and states, the products of the example's model: up to 64 lines by its own kernel,
/// beyond by cuBLAS, or by the kernel that keeps the largest logits alone. Every line has the same state, so that
/// target and draft agree.
class round_head {
 public:
  round_head(device where, int lines, int vocab_size);

  /// Enqueues the product of a step; `ranks`: its largest go to the step's `ranked_argmax` as well.
  void enqueue(const step_context& step, bool ranks) const;

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
