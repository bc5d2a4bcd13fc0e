#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/guard.hpp"
#include "kernels/sample/row_distribution.hpp"
#include "kernels/speculate/accept_result.hpp"

namespace stepgraph {

/// Where the drafts come from. A draft is *sampled* if its token was drawn from a line of `probabilities`, by
/// a draft draw of its own; any other (top-k of a draft, prompt look-up) is *chosen*. A sampled draft whose
/// q(x) is NaN, not positive or over 1 is treated as chosen. Siblings drawn without replacement need a line
/// each, renormalised after the earlier ones; identical sampled siblings must not be merged.
struct draft_view {
  const std::int32_t* lines =
      nullptr;              // [rows, stride] line of q of draft node j at j - 1, negative if chosen; or null
  std::int64_t stride = 0;  // entries between rows, at least Emax - 1
  const float* probabilities = nullptr;   // [line_count, vocab_size] q
  std::int64_t probabilities_stride = 0;  // elements between lines
  std::int32_t line_count = 0;
  std::int32_t vocab_size = 0;  // of the draft
  const std::int32_t* draft_ids =
      nullptr;  // [target's vocab_size] id in the draft or negative; or null: the same ids

  /// q(id) of a line, by the target's id.
  STEPGRAPH_HD float q(std::int32_t line, std::int32_t id) const {
    const std::int32_t mine = draft_ids ? draft_ids[id] : id;
    return mine >= 0 && mine < vocab_size ? probabilities[line * probabilities_stride + mine] : 0.0f;
  }
};

/// Keeps drafts so that what is emitted is distributed exactly as the target's p, whatever the drafts: a
/// sampled draft is kept with probability min(1, p(x) / q(x)) and leaves normalize(max(p - q, 0)) if refused,
/// a chosen one with p(x) and leaves p without x; siblings are tried in order; then a residual draw, or a
/// bonus draw at the path's end. Greedy rows may sit among the sampled. With one token a row it is plain
/// sampling. A NaN among the logits on the path, a mask that allows nothing there, or a q that is no
/// distribution (NaN or negative where p is positive) ends the row with a named status: the drafts kept
/// before it stay, and there is no bonus. What exactness asks of the caller: in sampled rows the number of
/// drafts may depend on earlier rounds and on q as a whole, never on which token was drawn.
struct rejection_accept_params {
  verify_view verify{};
  const std::int32_t* position = nullptr;  // [tokens]
  const float* logits = nullptr;           // [tokens, vocab_size]
  std::int64_t logits_stride = 0;          // elements between tokens
  std::int32_t vocab_size = 0;
  const row_distribution* distributions = nullptr;  // [tokens], from target_distribution of these logits
  sampling_view sampling{};                         // of the rows, as target_distribution had it
  allowed_view allowed{};                           // a line a token, as target_distribution had it
  bool with_unfiltered = false;                     // as target_distribution had it
  draft_view draft{};
  accept_result result{};     // out
  float* logprobs = nullptr;  // out [rows, result.stride] or null: ln p(token) of the emitted
  float* unfiltered_logprobs =
      nullptr;  // out likewise, of the masked logits alone; needs with_unfiltered, else NaN
  fault_sink faults{};
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const rejection_accept_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void rejection_accept(stream_ref at, const rejection_accept_params& params);

}  // namespace stepgraph
