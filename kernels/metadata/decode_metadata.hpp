#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/columns.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// How `cu_seqlens_q` is made.
enum class query_mode : std::int32_t {
  left_alone = 0,         // not written; read, as token_inputs wrote it, where swa_out_cache_loc is asked for
  cumulative = 1,         // cumsum0(E)
  rows_times_stride = 2,  // min(k, n) * q_stride
};

/// The same pages in the pool of sliding-window layers, by a map of slots or a map of pages, never both.
struct sliding_window_params {
  index_map full_to_swa{};             // slot to slot, or null
  index_map page_map{};                // page to page, or null
  std::int32_t* page_table = nullptr;  // out [rows, page_columns], or null: no sliding window
  std::int64_t page_table_stride = 0;  // entries between rows
  std::int32_t skip = -1;              // where slot or mapping is negative
  std::int32_t tail_value = -1;        // what the page table's tail rule writes here
  index_sink out_cache_loc{};          // out [query.tokens] or null: output slots in the window's pool
  std::int32_t out_cache_loc_skip = -1;
};

/// Lengths, their prefix sums and the page table of a step, for the attention kernels of an engine:
/// cache_seqlens[r] = len[r], cu_seqlens_k = cumsum0(cache_seqlens), page_table[r, p] = page p of row r for
/// p < pages(len[r]). The vectors are written in full, of the tables only the live columns: the rest is
/// undefined. The embedder owns all memory; addresses, widths and strides are baked into a capture, contents
/// are not.
struct decode_metadata_params {
  row_lengths lengths{};
  index_view requests{};  // q, [rows], lines of the page source
  page_source source{};
  index_map page_map{};    // virtual page to physical page, or null
  std::int32_t skip = -1;  // page where there is none: -1, or 0 for the sink page

  std::int32_t* cache_seqlens = nullptr;  // out [rows]
  index_sink cu_seqlens_k{};              // out [rows + 1] or null; int64 where rows * cap passes 2^31 - 1
  std::int32_t* page_table = nullptr;     // out [rows, page_columns], or null where a pool keeps it elsewhere
  std::int64_t page_table_stride = 0;     // entries between rows
  std::int64_t page_columns = 0;          // captured width
  tail_rule tail{};                       // of the page tables
  sliding_window_params window{};

  query_mode cu_seqlens_q_mode = query_mode::left_alone;
  query_tokens query{};                  // for mode cumulative and window.out_cache_loc
  std::int32_t q_stride = 0;             // for mode rows_times_stride
  std::int32_t* cu_seqlens_q = nullptr;  // [rows + 1], out unless left alone
  fault_sink faults{};
};

/// Enqueues the op: one launch, for decode, multi-head graph metadata and draft-extend alike. Throws
/// `invalid_argument` naming the field that cannot be.
void decode_metadata(stream_ref at, const decode_metadata_params& params);

/// Decode metadata with `cu_seqlens_q` in the mode given, for decode, verify and draft-extend.
void multi_head_metadata(stream_ref at, const decode_metadata_params& params);

/// Decode metadata with cu_seqlens_q = cumsum0(E), whatever the mode given.
void draft_extend_metadata(stream_ref at, decode_metadata_params params);

namespace detail {
/// Throws `invalid_argument` for page tables of `params`, the window's included, that cannot be.
void check_decode_tables(const char* op, const decode_metadata_params& params);
}  // namespace detail

}  // namespace stepgraph
