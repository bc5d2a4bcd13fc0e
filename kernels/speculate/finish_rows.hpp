#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/row_lengths.hpp"
#include "kernels/speculate/accept_result.hpp"

namespace stepgraph {

/// Why a request has no further tokens.
enum class finish_reason : std::int32_t {
  running = 0,          // it has
  end_of_sequence = 1,  // a token that ends the text was emitted; it is the last one
  token_budget = 2,     // as many tokens as it may have
  context_limit = 3,    // the last token emitted has no place in the context
  host_stop = 4,        // the host said so; what this round emitted stays
  fault = 5,            // the row's status is not ok
};

const char* to_string(finish_reason reason) noexcept;

/// Cuts what a round emitted at the first token that ends its request, and says why. The first reason in the
/// text counts; at one token an end-of-sequence id goes before the budget, that before the context. A fault,
/// then the host's flag, count where the text alone does not end. A request that finished stays so, whatever
/// the step does to its row.
struct finish_rows_params {
  verify_view verify{};    // token_ids and parents are not read
  accept_result result{};  // in/out: emit_count, cache_advance, next_token; emit_tokens is read
  const std::int32_t* cache_seqlens = nullptr;  // [rows] len, this step's tokens included
  index_view requests{};                        // [rows] lines of the three below
  std::int32_t request_count = 0;
  const std::int32_t* end_ids = nullptr;  // [end_id_count] or null: token ids that end a text
  std::int32_t end_id_count = 0;
  std::int32_t* budget = nullptr;            // in/out [request_count] or null: tokens it may still emit
  std::int64_t max_context = 0;              // tokens
  const std::int32_t* stop_flags = nullptr;  // [request_count], host-visible, or null: not 0 to stop
  const std::int32_t* row_status = nullptr;  // [rows] or null
  std::int32_t* finished = nullptr;          // in/out [request_count] finish_reason
  std::int32_t* reason = nullptr;  // out [rows] or null: finish_reason after this step, 0 for dead rows
  fault_sink faults{};
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const finish_rows_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void finish_rows(stream_ref at, const finish_rows_params& params);

}  // namespace stepgraph
