#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/step/step_prologue.hpp"

namespace stepgraph {

/// What a step came to for one row.
struct row_result {
  std::int32_t token;   // emitted last, -1 where the row had no tokens or failed
  std::int32_t length;  // tokens in the KV cache after the step
  std::int32_t status;  // row_status
  std::int32_t count;   // tokens emitted: 0 or 1, more in a verify step
};

/// The last node of a step: advances the requests (lengths, last tokens) and hands the results to the host
/// through a ring. One block. A row whose status is not ok does not advance; of a verify step it still emits
/// the drafts that were kept before the fault.
struct step_epilogue_params {
  const staged_header* header = nullptr;
  const std::int32_t* live_rows = nullptr;      // n
  std::int32_t rows = 0;                        // B, captured
  const std::int32_t* requests = nullptr;       // [rows]
  const std::int32_t* query_counts = nullptr;   // [rows], E
  const std::int32_t* cache_seqlens = nullptr;  // [rows], lengths of this step, its tokens included
  const std::int32_t* next_token = nullptr;     // [rows], emitted last, negative for none
  const std::int32_t* row_status = nullptr;     // [rows]
  // what an accept left; null where a row emits next_token alone and keeps all that it stored
  const std::int32_t* emit_count = nullptr;     // [rows] tokens emitted
  const std::int32_t* cache_advance = nullptr;  // [rows] of the row's E tokens, those that count in the cache
  const std::int32_t* emit_tokens = nullptr;    // [rows, emit_stride]
  std::int64_t emit_stride = 1;                 // entries between rows, of emit_tokens and result_tokens
  request_state state{};                        // advanced
  row_result* results = nullptr;                // out [slots, ring_rows], host-visible
  std::int32_t* result_tokens = nullptr;        // out [slots, ring_rows, emit_stride], host-visible
  std::int32_t result_slots = 0;
  std::int32_t ring_rows = 0;  // rows of one slot, at least `rows`
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void step_epilogue(stream_ref at, const step_epilogue_params& params);

}  // namespace stepgraph
