#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// Lengths, their prefix sums and the page table of a step, for the attention kernels of an engine:
/// cache_seqlens[r] = len[r], cu_seqlens_k = cumsum0(cache_seqlens), page_table[r, p] = page p of row r for
/// p < pages(len[r]). The vectors are written in full, of the table only the live columns: the rest is
/// undefined. The embedder owns all memory; addresses, widths and strides are baked into a capture, contents
/// are not.
struct decode_metadata_params {
  row_lengths lengths{};
  index_view requests{};  // q, [rows], lines of the page source
  page_source source{};
  std::int32_t skip = -1;  // page where there is none: -1, or 0 for the sink page

  std::int32_t* cache_seqlens = nullptr;  // out [rows]
  std::int32_t* cu_seqlens_k = nullptr;   // out [rows + 1], or null
  std::int32_t* page_table = nullptr;     // out [rows, page_columns], or null where a pool keeps it elsewhere
  std::int64_t page_table_stride = 0;     // entries between rows
  std::int64_t page_columns = 0;          // captured width
  fault_sink faults{};
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void decode_metadata(stream_ref at, const decode_metadata_params& params);

}  // namespace stepgraph
