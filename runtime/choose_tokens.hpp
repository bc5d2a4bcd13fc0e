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
};

/// Enqueues what comes after the logits in the body of any step: argmax or a draw, by each row's settings; of
/// a sampled verify step the target's distributions and the accept. Writes what `step` asks of its body. One
/// launch, two in a sampled verify step; none where the head has ranked, unless a further step of the draft is to be fed plain
/// tokens. Throws `invalid_argument` naming the field that cannot be.
void choose_tokens(const step_context& step, const head_logits& logits);

}  // namespace stepgraph
