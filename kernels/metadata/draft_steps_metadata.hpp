#pragma once

#include <cstdint>

#include "kernels/metadata/decode_metadata.hpp"

namespace stepgraph {

/// The metadata of all draft decodes of a round in one launch. Step k, 0 <= k < steps, is a decode at lengths
/// seq_lens + k + 1; its vectors are line k of the outputs. Page tables are written once, for the last step's
/// lengths. The embedder owns all memory; addresses and numbers are baked into a capture, contents are not.
struct draft_steps_metadata_params {
  decode_metadata_params decode{};  // lengths (their deltas are not used), source, page tables and window;
                                    // its vectors and cu_seqlens_q are not written
  std::int32_t steps = 0;           // draft decodes of the round
  query_tokens query{};             // E, 0 or 1 a row
  std::int32_t slot_skip = -1;      // slot of a token that stores nothing: -1, or 0 for the sink
  std::int32_t* cache_seqlens = nullptr;  // out [steps, rows]
  index_sink cu_seqlens_k{};              // out [steps, rows + 1] or null
  index_sink out_cache_loc{};             // out [steps, query.tokens] or null
  std::int32_t* position = nullptr;       // out [steps, query.tokens] or null
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void draft_steps_metadata(stream_ref at, const draft_steps_metadata_params& params);

}  // namespace stepgraph
