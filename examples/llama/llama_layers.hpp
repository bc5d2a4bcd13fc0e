#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "examples/llama/llama_weights.hpp"
#include "kernels/element_type.hpp"
#include "runtime/step_context.hpp"

namespace stepgraph::llama {

/// One layer's weights in device memory, row-major, 16-byte aligned; matrices in the model's type, gains
/// float32.
struct device_layer_weights {
  const float* attention_norm = nullptr;   // [hidden]
  const void* qkv = nullptr;               // [(heads + 2 kv_heads) * head_size, hidden]: query, key, value
  const void* attention_output = nullptr;  // [hidden, heads * head_size]
  const float* ffn_norm = nullptr;         // [hidden]
  const void* gate_up = nullptr;           // [2 * ffn, hidden]: gate, up
  const void* down = nullptr;              // [hidden, ffn]
};

/// What a draft head has before its layer (`input_fusion`); types as above.
struct device_input_fusion {
  const float* embedding_norm = nullptr;  // [hidden]
  const float* hidden_norm = nullptr;     // [states, hidden]
  const void* weight = nullptr;           // [hidden, (1 + states) * hidden]; null: no draft head
  int states = 1;
};

/// A whole model's weights in device memory. Non-owning.
struct device_weights {
  const void* token_embedding = nullptr;  // [vocab, hidden]
  std::vector<device_layer_weights> layers;
  const float* output_norm = nullptr;  // [hidden]
  const void* output = nullptr;        // [vocab, hidden]; the embedding itself where tied
  device_input_fusion fusion{};        // of a draft head, whose embedding has the target's rows
};

/// The forward pass of a Llama-architecture model on a GPU over a step's packed tokens, from embedding to
/// logits, for any shape: head size 64 or 128, sizes multiples of 8. Dead tokens of the bucket are computed
/// and harm nothing.
///
/// bfloat16 and up to 64 tokens: five launches a layer and batch-invariant products (skinny_matmul.hpp). More
/// tokens: cuBLAS. float32: plain kernels, for tests.
class llama_layers {
 public:
  /// `type` is bf16 or f32. Throws `invalid_argument` naming the size that cannot be. Keeps `weights`'
  /// pointers.
  llama_layers(device where, const llama_config& config, element_type type, device_weights weights);
  ~llama_layers();
  llama_layers(const llama_layers&) = delete;
  llama_layers& operator=(const llama_layers&) = delete;

  /// Scratch that `forward` needs, bytes. The logits, float32 [lines, vocab], are its head.
  std::size_t scratch_bytes(const step_key& key) const;

  /// Enqueues everything (of a draft head also the copy to `hidden_out`) up to the logits of the lines that go to the output head: a row's last token, in a
  /// verify step all. Neither allocates nor synchronises.
  void forward(const step_context& step) const;

  /// Whether `forward` leaves the largest logits alone, in the step's `ranked_argmax`.
  bool ranks(const step_context& step) const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace stepgraph::llama
