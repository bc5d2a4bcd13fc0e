#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/columns.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// What a query token of compressed attention reads: for the live token at pos = len - E + j, compression
/// ratio k and window w,
///   a = min((pos + 1) / k, topk) indices compressed_base[r] + topk_indices[t, i], negative ones -1; then
///   b = min(pos + 1, w) indices swa_base[r] + (pos - b + 1 - gather_start[r]) + i; then -1 up to
/// topk + w rounded up to 128, where gather_start[r] = len[r] - gather_len[r]; length[t] = a + b. A token with
/// nothing before it has length 0. Where the window begins before gather_start (reported, by row), those
/// indices are -1. The embedder owns all memory; addresses and numbers are baked into a capture, contents are
/// not.
struct combine_top_k_and_window_params {
  row_lengths lengths{};
  const std::int32_t* query_start_loc = nullptr;  // [rows + 1], device; only differences to entry 0 count
  std::int32_t tokens = 0;                        // C, captured; tokens past it are dropped and reported
  index_view topk_indices{};                      // [C, topk_columns] int32; null if topk is 0
  std::int64_t topk_stride = 0;                   // entries
  std::int64_t topk_columns = 0;                  // at least topk
  std::int32_t topk = 0;                          // 0: window only
  std::int32_t window = 0;                        // w, 0 or more
  std::int32_t ratio = 1;                         // k, 1 or more
  const std::int32_t* gather_len = nullptr;       // [rows] tokens gathered for the window, in [0, len]
  const std::int32_t* compressed_base = nullptr;  // [rows]; may be null if topk is 0
  const std::int32_t* swa_base = nullptr;         // [rows]
  table_sink indices{};  // out [C, at least topk + window rounded up to 128]; its `skip` must be -1,
                         // its `tail` begins past the padded width
  std::int32_t* length = nullptr;  // out [C], 0 for dead tokens
  /// Tokens, from the first on, whose indices stay in a GPU's L2 cache for whoever reads them; all other accesses
  /// are the first to leave it. -1: as many as two fifths of the cache hold.
  std::int32_t kept = -1;
  fault_sink faults{};

  /// Columns written of a live token's line.
  STEPGRAPH_HD std::int32_t padded_width() const { return (topk + window + 127) & ~127; }
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void combine_top_k_and_window(stream_ref at, const combine_top_k_and_window_params& params);

}  // namespace stepgraph
