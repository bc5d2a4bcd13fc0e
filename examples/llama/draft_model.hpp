#pragma once

#include <memory>
#include <vector>

#include "runtime/step_executor.hpp"

namespace stepgraph::llama {

/// A model that drafts for a llama_model. One forward pass serves draft_extend and draft_decode: token t of
/// the step, at position p = step.positions[t], is the text's token p + 1; beside it goes line
/// step.hidden_row[t] of step.hidden_in (after a layer and before any norm, float32: of the
/// target in draft_extend, the draft's own in draft_decode). The draft keeps keys and values at
/// step.out_cache_loc[t] of step.kv, attends as far as step.causal_length[t] says, writes the state of each
/// row's last token (step.last_row) to line step.out_line[row] (or `row`, where that is null) of
/// step.hidden_out, and ends in `choose_tokens` over [rows] lines of logits.
class draft_model {
 public:
  virtual ~draft_model() = default;

  /// Layout of its KV pool, hidden size, vocabulary and maps, in the device's memory.
  virtual draft_shape shape() const = 0;

  /// Scratch that `forward` needs in a bucket, bytes.
  virtual std::size_t scratch_bytes(const step_key& key) const = 0;

  /// Enqueues the pass. Neither allocates nor synchronises.
  virtual void forward(const step_context& step) const = 0;

  /// Its draft_extend and draft_decode steps, greedy (variant 0) and sampled (variant 1). The model must
  /// outlive the executor that runs them.
  std::vector<step_definition> steps() const {
    std::vector<step_definition> steps;
    for (const step_kind kind : {step_kind::draft_extend, step_kind::draft_decode})
      for (const bool sampled : {false, true})
        steps.push_back({.kind = kind,
                         .variant = sampled ? 1 : 0,
                         .body = [this](const step_context& step) { forward(step); },
                         .scratch_bytes =
                             [this, kind](int rows, int tokens) {
                               return scratch_bytes({.kind = kind, .rows = rows, .tokens = tokens});
                             },
                         .sampled = sampled});
    return steps;
  }
};

}  // namespace stepgraph::llama
