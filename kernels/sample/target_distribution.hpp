#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/guard.hpp"
#include "kernels/sample/row_distribution.hpp"

namespace stepgraph {

/// The target distribution p after each live query token, as `rejection_accept` wants it. A token whose
/// logits hold a NaN, or whose mask allows nothing, says so in its distribution; whether that ends the row
/// depends on the path, so the accept reports it. Writes live tokens alone.
struct target_distribution_params {
  const float* logits = nullptr;   // [tokens, vocab_size]
  std::int64_t logits_stride = 0;  // elements between tokens
  std::int32_t tokens = 0;         // C, captured
  std::int32_t vocab_size = 0;
  const std::int32_t* live_tokens = nullptr;  // T, cu_seqlens_q + rows
  const std::int32_t* row_of = nullptr;       // [tokens]
  sampling_view sampling{};                   // of the rows
  allowed_view allowed{};                     // a line a token
  bool with_unfiltered = false;               // one pass more, for unfiltered logprobs
  row_distribution* distributions = nullptr;  // out [tokens], live region
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const target_distribution_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void target_distribution(stream_ref at, const target_distribution_params& params);

}  // namespace stepgraph
