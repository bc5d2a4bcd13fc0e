#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/guard.hpp"
#include "kernels/sample/token_output.hpp"

namespace stepgraph {

/// What `greedy_sample` comes to where the output head has already found the largest of each line's logits: the
/// tokens of such numbers (`ranked_logit`). Faults are reported as `greedy_sample`'s; the value is the NaN's id, or -1
/// for a line of which nothing was ranked.
struct take_argmax_params {
  const std::uint64_t* ranked = nullptr;       // [rows]
  std::int32_t rows = 0;                       // B, captured
  const std::int32_t* live_rows = nullptr;     // n
  const std::int32_t* query_counts = nullptr;  // [rows] or null; a row with 0 gets -1
  std::int32_t* next_token = nullptr;          // out [rows]; 0 for dead rows
  token_output out{};                          // where and how they are written
  fault_sink faults{};
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void take_argmax(stream_ref at, const take_argmax_params& params);

}  // namespace stepgraph
