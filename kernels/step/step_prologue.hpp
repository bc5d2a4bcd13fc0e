#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/metadata/token_inputs.hpp"

namespace stepgraph {

/// A change of a request's page table that a step carries with it.
struct page_patch {
  std::int32_t request;
  std::int32_t index;  // column of the request's line
  std::int32_t page;
};

/// What the host says of one step, at the head of the one block that is copied per replay.
struct staged_header {
  std::int32_t live_rows;    // n
  std::int32_t patches;      // page_patch entries that follow
  std::int32_t result_slot;  // slot of the result ring that this step writes
  std::int32_t reserved;
};

/// The state of requests that lives on the device from step to step, one line a request.
struct request_state {
  std::int32_t* pages = nullptr;  // [requests, page_columns], page-granular
  std::int64_t page_stride = 0;   // entries between lines
  std::int32_t page_columns = 0;
  std::int32_t requests = 0;
  std::int32_t* seq_lens = nullptr;    // [requests], tokens in the KV cache
  std::int32_t* last_token = nullptr;  // [requests], the token sampled last, not yet in the cache
};

/// The first node of a step: applies the host's page patches, gathers lengths and tokens of the live rows,
/// makes the token inputs, and makes dead rows and tokens harmless (token 0, position 0, the sink slot) for
/// foreign kernels that run over the whole bucket. One block.
struct step_prologue_params {
  const staged_header* header = nullptr;              // staged, as are the four below
  const std::int32_t* staged_requests = nullptr;      // [rows] line of the request
  const std::int32_t* staged_query_counts = nullptr;  // [rows] E
  const std::int32_t* staged_lengths = nullptr;  // [rows] length before the step, or -1: the device knows
  const std::int32_t* staged_tokens = nullptr;   // [tokens] packed as E says, or -1: the request's last token
  const page_patch* patches = nullptr;           // [header->patches], at most max_patches
  std::int32_t max_patches = 0;
  request_state state{};
  std::int32_t vocab_size = 0;  // token ids outside [0, vocab_size) are reported and become 0

  std::int32_t* live_rows = nullptr;     // out, n in [0, rows]
  std::int32_t* requests = nullptr;      // out [rows], 0 for dead rows
  std::int32_t* query_counts = nullptr;  // out [rows], E in [0, Emax], 0 for dead rows
  std::int32_t* seq_lens = nullptr;      // out [rows], tokens before the step, 0 for dead rows
  std::int32_t* row_status = nullptr;    // out [rows], reset to ok
  std::int32_t* token_ids = nullptr;     // out [tokens], 0 for dead tokens
  token_inputs_params inputs{};          // its inputs are the outputs above
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void step_prologue(stream_ref at, const step_prologue_params& params);

}  // namespace stepgraph
