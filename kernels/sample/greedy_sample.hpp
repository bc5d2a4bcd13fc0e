#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/guard.hpp"
#include "kernels/sample/sampling_settings.hpp"
#include "kernels/sample/token_output.hpp"

namespace stepgraph {

/// Argmax of each live row's allowed logits; ties go to the lowest id. A NaN among them gives -1 and the
/// status `nan_logits`, a mask that allows nothing -2 and `no_allowed_token`. Of a verify step the rows are
/// its tokens and there is no fault sink: `greedy_accept` reports what lies on the path.
struct greedy_sample_params {
  const float* logits = nullptr;   // [rows, vocab_size]
  std::int64_t logits_stride = 0;  // elements between rows
  std::int32_t rows = 0;           // B, captured
  std::int32_t vocab_size = 0;
  const std::int32_t* live_rows = nullptr;     // n
  const std::int32_t* query_counts = nullptr;  // [rows] or null; a row with 0 gets -1
  allowed_view allowed{};                      // a line a row
  std::int32_t* next_token = nullptr;          // out [rows]; 0 for dead rows
  token_output out{};                          // where and how they are written
  fault_sink faults{};
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void greedy_sample(stream_ref at, const greedy_sample_params& params);

namespace detail {
/// The CUDA launch; defined in greedy_sample.cu.
void greedy_sample_cuda(stream_ref at, const greedy_sample_params& params);
}  // namespace detail

}  // namespace stepgraph
