#pragma once

#include <memory>
#include <vector>

#include "examples/llama/llama_weights.hpp"
#include "runtime/step_executor.hpp"

namespace stepgraph::llama {

/// Which steps a model defines. Greedy ones have variant 0, sampled ones 1; verify steps with trees 2 and 3.
struct step_choice {
  bool verify = false;
  bool sampled = false;
  bool trees = false;
};

/// A Llama-architecture model as the body of stepgraph's steps. One forward pass serves every kind of step:
/// the tokens are packed, each sees its own causal length of its row's pages, and the row's last token goes
/// to the output head.
class llama_model {
 public:
  virtual ~llama_model() = default;
  llama_model(const llama_model&) = delete;
  llama_model& operator=(const llama_model&) = delete;

  const llama_config& config() const noexcept { return config_; }
  virtual device where() const noexcept = 0;

  /// Shape of the KV cache that the model writes.
  kv_layout layout() const noexcept;

  /// Scratch that `forward` needs in a bucket, bytes.
  virtual std::size_t scratch_bytes(const step_key& key) const = 0;

  /// Enqueues the forward pass up to the logits. Neither allocates nor synchronises.
  virtual void enqueue_logits(const step_context& step) const = 0;

  /// Whether `enqueue_logits` leaves the largest of them alone, in the step's `ranked_argmax`.
  virtual bool ranks(const step_context&) const { return false; }

  /// Enqueues the whole forward pass and what follows from its logits; also as a draft's step, where it takes
  /// no notice of the target's states. Neither allocates nor synchronises.
  void forward(const step_context& step) const {
    enqueue_logits(step);
    emit(step);
  }

  /// The logits of the step that ran last, float32, in device memory: [rows, vocab_size], in a verify step
  /// [tokens, vocab_size]. They are the head of the scratch. There are none where the step `ranks`: a
  /// body that wants them hands on a context without `ranked_argmax`.
  static const float* logits(const step_context& step) {
    return reinterpret_cast<const float*>(step.scratch.data());
  }

  /// The decode and extend (and verify) steps of this model, which must outlive the executor that runs them.
  std::vector<step_definition> steps(bool with_verify = false) const {
    return steps(step_choice{.verify = with_verify});
  }
  std::vector<step_definition> steps(const step_choice& choice) const;

  /// Bytes of weights that one token reads.
  virtual std::size_t weight_bytes() const noexcept = 0;

  /// Tokens whose hidden state goes to the output head: a row's last, in a verify step all.
  static bool all_tokens_to_head(const step_key& key) { return key.kind == step_kind::target_verify; }
  static int head_lines(const step_key& key) { return all_tokens_to_head(key) ? key.tokens : key.rows; }

 protected:
  /// What follows from the head's logits.
  void emit(const step_context& step) const;

  /// Throws `invalid_argument` if the taps are not ascending layers of the model.
  llama_model(const llama_config& config, element_type cache_type);

  /// Refuses a step whose lines for a draft are not of the size that this model writes.
  void check_states(const step_context& step) const;

  llama_config config_;
  element_type cache_type_;
};

/// On the host: weights stay quantised as the file has them, activations and KV cache are float32.
std::unique_ptr<llama_model> make_host_llama(const llama_weights& weights);

/// On a GPU: bf16 weights, activations and KV cache, float32 sums and residuals; float32 throughout where the
/// file's weights are float32. `max_context` bounds the positions.
std::unique_ptr<llama_model> make_cuda_llama(device where, const llama_weights& weights);

/// Whichever `where` asks for.
std::unique_ptr<llama_model> make_llama(device where, const llama_weights& weights);

}  // namespace stepgraph::llama
