#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/step/request_state.hpp"

namespace stepgraph {

/// Makes "undefined" literal in what lasts by request: of a line that nobody has, everything becomes wild (every
/// byte 0x7f); of the others the page table beyond the pages given, and what a draft left where no draft is due.
/// For poison mode.
struct poison_requests_params {
  request_state state{};
  const std::int32_t* live_pages = nullptr;  // [requests] pages of the line, 0: nobody has it
  float* hidden = nullptr;                   // [requests + 1, hidden_size] or null: the draft's last states
  std::int64_t hidden_size = 0;
  float* probabilities = nullptr;  // [requests + 1, vocab_size] or null: of the first draft
  std::int64_t vocab_size = 0;     // of the draft
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void poison_requests(stream_ref at, const poison_requests_params& params);

}  // namespace stepgraph
