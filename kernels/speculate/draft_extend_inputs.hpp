#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "kernels/speculate/accept_result.hpp"

namespace stepgraph {

/// The target step before it was no verify step: all its tokens are in the cache, and each is paired with the
/// token after it, the last one of a row with the request's last token.
struct plain_step_view {
  const std::int32_t* accepts = nullptr;       // device number: 0 if it was none. Null: it always was
  const std::int32_t* token_ids = nullptr;     // [tokens] of that step
  const std::int32_t* query_counts = nullptr;  // [rows]
  const std::int32_t* last_token = nullptr;    // [requests]; negative: the row has nothing to pair
};

/// The inputs of a draft-extend step, packed: for every position p that a round put into the target's cache,
/// the token at p + 1 and the place of the target's hidden state at p among the target step's tokens. A row
/// that was cut or ended without a bonus has as many entries as it has tokens to pair; a finished one has
/// none. Vectors are written in full at every replay; dead rows and tokens get 0.
struct draft_extend_inputs_params {
  verify_view verify{};    // of the round; token_ids and parents are not read
  accept_result result{};  // of the round, read: emit_count, cache_advance, emit_tokens, path
  plain_step_view plain{};
  const std::int32_t* finished = nullptr;  // [requests] or null: not 0 once a request is finished

  std::int32_t* query_counts = nullptr;  // out [rows] E
  std::int32_t* token_ids = nullptr;     // out [tokens]
  std::int32_t* hidden_row = nullptr;    // out [tokens] or null: token of the target step
  std::int32_t* out_line = nullptr;  // out [rows] or null: the row's request; inputs.source.requests for none
  std::int32_t* cache_seqlens = nullptr;  // out [rows] or null: len
  std::int32_t* cu_seqlens_k = nullptr;   // out [rows + 1] or null: cumsum0(len)
  std::uint64_t* ranked =
      nullptr;  // out: numbers at out_line (or by row) cleared for the output head, or null
  std::int32_t* first_drawn = nullptr;  // out at out_line (or by row), or null: `draws`
  bool draws = false;                   // the step draws its drafts and leaves each one's distribution
  /// lengths.delta_by_row and query_counts must be the output above; seq_lens + delta are tokens before the
  /// round.
  token_inputs_params inputs{};
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const draft_extend_inputs_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void draft_extend_inputs(stream_ref at, const draft_extend_inputs_params& params);

}  // namespace stepgraph
