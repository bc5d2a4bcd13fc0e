#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/columns.hpp"
#include "kernels/guard.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// What compressed attention needs at one ratio. Entry x of a token lies, with m = P / ratio entries a page,
/// at page_table[x / m] * m + x mod m.
struct compression_level {
  std::int32_t ratio_shift = 2;  // log2 of the ratio k: 2 for C4, 7 for C128
  index_sink out_loc{};          // out [tokens] or null: loc / k where a group is complete, else out_loc_skip
  std::int32_t out_loc_skip = -1;
  std::int32_t* positions = nullptr;       // out [tokens] or null: (c - 1) & ~(k - 1)
  std::int32_t* length = nullptr;          // out [tokens] or null: c / k
  std::int32_t* length_clamped = nullptr;  // out [tokens] or null: max(c / k, 1), 0 for dead tokens
  table_sink page_indices{};               // out [tokens, capacity] or null; needs P >= k
};

/// Metadata of compressed attention at up to four ratios in one launch. Vectors are written in full, of the
/// index tables only the live columns. The embedder owns all memory; addresses and numbers are baked into a
/// capture.
struct compressed_metadata_params {
  static constexpr int max_levels = 4;
  const std::int32_t* live_tokens = nullptr;    // T, one number in device memory; cu_seqlens_q + rows will do
  std::int32_t tokens = 0;                      // C, captured
  const std::int32_t* causal_length = nullptr;  // c, [tokens]
  index_view out_loc{};                         // [out_locs] raw output slots; tokens past them store nothing
  std::int32_t out_locs = 0;
  const std::int32_t* page_table = nullptr;  // [page_lines, page_columns], read where indices are asked for
  std::int64_t page_table_stride = 0;        // entries between lines
  std::int64_t page_columns = 0;
  std::int32_t page_lines = 0;
  const std::int32_t* row_of = nullptr;  // [tokens] a token's line, or null: a line a token
  std::int32_t page_shift = 0;           // log2 of P
  std::int32_t levels = 0;
  compression_level level[max_levels]{};
  fault_sink faults{};  // rows are tokens here
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void compressed_metadata(stream_ref at, const compressed_metadata_params& params);

}  // namespace stepgraph
