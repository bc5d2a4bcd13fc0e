#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/guard.hpp"
#include "kernels/sample/sampling_settings.hpp"

namespace stepgraph {

/// A line of which nothing was allowed, as `token_of_ranked` has it.
constexpr std::uint64_t nothing_ranked = 1;

/// Raises each live row's number to the largest `ranked_logit` of its allowed logits, and to 1 at least, which says
/// that nothing was allowed. With `take_argmax`, or an accept that reads such numbers, what `greedy_sample` comes to: one
/// node more, but the rows' parts need not wait for each other.
struct rank_logits_params {
  const float* logits = nullptr;   // [rows, vocab_size]
  std::int64_t logits_stride = 0;  // elements between rows
  std::int32_t rows = 0;           // B, captured
  std::int32_t vocab_size = 0;
  const std::int32_t* live_rows = nullptr;     // n
  const std::int32_t* query_counts = nullptr;  // [rows] or null; of a row with 0 nothing is read
  allowed_view allowed{};                      // a line a row
  std::uint64_t* ranked = nullptr;             // in and out [rows]
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void rank_logits(stream_ref at, const rank_logits_params& params);

namespace detail {
/// The CUDA launch; defined in rank_logits.cu.
void rank_logits_cuda(stream_ref at, const rank_logits_params& params);
}  // namespace detail

}  // namespace stepgraph
