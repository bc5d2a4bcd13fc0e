#pragma once

#include "runtime/step_context.hpp"

namespace stepgraph {

/// What an output head hands over. In a verify step there is a line of logits a token, in any other a row.
struct head_logits {
  const float* data = nullptr;  // [tokens or rows, vocab_size]
  std::int64_t stride = 0;      // elements between lines
  std::int32_t vocab_size = 0;
  const std::int32_t* target_ids = nullptr;  // of a draft with a reduced vocabulary: [vocab_size]; or null
  allowed_view allowed{};                    // a line a line of logits, or null
  /// The head of this greedy step has left the largest logits in the step's `ranked_argmax`: the logits themselves
  /// are not read, and there may be none.
  bool ranked = false;
  /// The draft's body reads what it is fed from the step's `ranked_feed`: then nothing is enqueued for ranked logits.
  bool reads_ranked_feed = false;
  /// Out, device memory of the embedder, each or null: ln of the probability of every token that a target step emits.
  /// [rows], of every live row, 0 where it emits none; in a verify step [rows, step.accepted.stride], an entry a token
  /// of the row, bonus included. Nothing else is written. `logprobs`: of what the row draws from, after temperature and
  /// filters, so 0 where the row is greedy; `unfiltered_logprobs`: of the softmax of the allowed logits alone. Not of
  /// the draft's steps, and not where the head has ranked.
  float* logprobs = nullptr;
  float* unfiltered_logprobs = nullptr;

  bool wants_logprobs() const { return logprobs || unfiltered_logprobs; }
};

/// Enqueues what comes after the logits in the body of any step: argmax or a draw, by each row's settings; of
/// a sampled verify step the target's distributions and the accept. Writes what `step` asks of its body. One
/// launch, two in a sampled verify step; none where the head has ranked, unless a further step of the draft is to be fed
/// plain tokens; logprobs of a greedy step are one more (`greedy_logprobs`). A row whose mask allows nothing ends with
/// `no_allowed_token` and emits nothing, in a verify step nothing after the drafts kept before. Throws
/// `invalid_argument` naming the field that cannot be.
void choose_tokens(const step_context& step, const head_logits& logits);

}  // namespace stepgraph
