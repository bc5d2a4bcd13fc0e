#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// Slots, in the window's own pool, of the tokens that a row's queries can see: per row g = min(len, E + w - 1)
/// ids full_to_swa[S(q[r], len - g + i)] at offsets[r] + i. There is no `tail`: what lies past offsets[rows] is
/// undefined. The embedder owns all memory; addresses and numbers are baked into a capture, contents are not.
struct window_token_ids_params {
  row_lengths lengths{};
  index_view requests{};  // q, [rows], lines of the page source
  page_source source{};
  query_tokens query{};     // E
  std::int32_t window = 1;  // w, tokens, its own included
  index_map full_to_swa{};  // slot of the cache to slot of the window's pool, or null: the slot itself
  std::int32_t skip = -1;   // id where there is no slot: -1, or 0 for the sink
  std::int32_t* gather_len = nullptr;  // out [rows] g
  index_sink offsets{};                // out [rows + 1]; int64 where rows * cap passes 2^31 - 1
  index_sink ids{};                    // out [capacity]
  std::int64_t capacity = 0;           // ids past it are not written, and their rows reported
  fault_sink faults{};
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void window_token_ids(stream_ref at, const window_token_ids_params& params);

}  // namespace stepgraph
