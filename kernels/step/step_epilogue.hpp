#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/speculate/finish_rows.hpp"
#include "kernels/speculate/greedy_accept.hpp"
#include "kernels/step/step_rows.hpp"

namespace stepgraph {

/// What a step came to for one row.
struct row_result {
  std::int32_t token;   // emitted last, -1 where the row had no tokens or failed
  std::int32_t length;  // tokens in the KV cache after the step
  std::int32_t status;  // row_status
  std::int32_t count;   // tokens emitted: 0 or 1, more in a verify step
  std::int32_t reason;  // finish_reason, where the executor finishes requests
};

/// What comes after the logits of a target step, in one node: greedy accept, the end of requests, their
/// lengths and last tokens, and the results to the host through a ring. One block. A row whose status is not
/// ok does not advance; of a verify step it still emits the drafts that were kept before the fault.
struct step_epilogue_params {
  const staged_header* header = nullptr;
  const std::int32_t* following = nullptr;      // [rows] staged: what comes after the row's tokens, or -1
  const std::int32_t* live_rows = nullptr;      // n
  std::int32_t rows = 0;                        // B, captured
  const std::int32_t* requests = nullptr;       // [rows]
  const std::int32_t* query_counts = nullptr;   // [rows], E
  const std::int32_t* cache_seqlens = nullptr;  // [rows], lengths of this step, its tokens included
  const std::int32_t* next_token = nullptr;     // [rows], emitted last, negative for none
  const std::uint64_t* ranked = nullptr;     // [rows] or null: of no verify step, stands for it where not 0
  const std::int32_t* row_status = nullptr;  // [rows]
  bool accepts = false;                      // a verify step: `accept.result` says what is kept
  /// Of a verify step. Without argmax the body has accepted already.
  greedy_accept_params accept{};
  /// `finished` null: nobody ends requests here. Its vectors are those of this step.
  finish_rows_params finish{};
  request_state state{};                  // advanced
  row_result* results = nullptr;          // out [slots, ring_rows], host-visible
  std::int32_t* result_tokens = nullptr;  // out [slots, ring_rows, emit_stride], host-visible
  std::int64_t emit_stride = 1;           // entries between rows
  std::int32_t result_slots = 0;
  std::int32_t ring_rows = 0;  // rows of one slot, at least `rows`
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void step_epilogue(stream_ref at, const step_epilogue_params& params);

}  // namespace stepgraph
