#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/sample/sampling_settings.hpp"
#include "kernels/speculate/accept_result.hpp"

namespace stepgraph {

/// ln of the probability of each token that a greedy step emits. Of a plain step every live row is written, 0 where it
/// emits none; of a verify step one entry a token that `greedy_accept` will emit, the bonus included, and nothing else.
/// Lines off the accepted path cost no pass. A kept token whose line holds a NaN emits nothing, so nothing is written.
struct greedy_logprobs_params {
  const float* logits = nullptr;   // [lines, vocab_size]
  std::int64_t logits_stride = 0;  // elements between lines
  std::int32_t lines = 0;          // captured: B, of a verify step C
  std::int32_t vocab_size = 0;
  const std::int32_t* live_lines = nullptr;  // n, of a verify step T
  allowed_view allowed{};                    // a line a line, as greedy_sample had it
  const std::int32_t* argmax = nullptr;  // [lines], from greedy_sample over these logits; negative for none
  verify_view verify{};                  // of a verify step; `rows` 0: a plain one
  const std::int32_t* row_of = nullptr;  // [lines], of a verify step
  float* logprobs = nullptr;  // out [rows, stride] or null: after the filters, which leave one token: 0
  float* unfiltered_logprobs =
      nullptr;              // out [rows, stride] or null: of the softmax of the allowed logits alone
  std::int64_t stride = 1;  // entries between rows, at least Emax
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const greedy_logprobs_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void greedy_logprobs(stream_ref at, const greedy_logprobs_params& params);

}  // namespace stepgraph
