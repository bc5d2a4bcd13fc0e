#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/step/step_prologue.hpp"

namespace stepgraph {

/// What a step came to for one row.
struct row_result {
  std::int32_t token;   // sampled, or -1 where the row had no tokens or failed
  std::int32_t length;  // tokens in the KV cache after the step
  std::int32_t status;  // row_status
  std::int32_t reserved;
};

/// The last node of a step: advances the requests (lengths, last tokens) and hands the results to the host
/// through a ring. One block. A row whose status is not ok does not advance.
struct step_epilogue_params {
  const staged_header* header = nullptr;
  const std::int32_t* live_rows = nullptr;      // n
  std::int32_t rows = 0;                        // B, captured
  const std::int32_t* requests = nullptr;       // [rows]
  const std::int32_t* query_counts = nullptr;   // [rows], E
  const std::int32_t* cache_seqlens = nullptr;  // [rows], lengths of this step
  const std::int32_t* next_token = nullptr;     // [rows], what the body sampled, negative for none
  const std::int32_t* row_status = nullptr;     // [rows]
  request_state state{};                        // advanced
  row_result* results = nullptr;                // out [slots, ring_rows], host-visible
  std::int32_t result_slots = 0;
  std::int32_t ring_rows = 0;  // rows of one slot, at least `rows`
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void step_epilogue(stream_ref at, const step_epilogue_params& params);

}  // namespace stepgraph
