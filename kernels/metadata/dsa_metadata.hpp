#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/columns.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// Metadata of sparse attention with an indexer that keeps `topk` tokens: one definition for decode, verify
/// and draft-extend, ragged or, with `query.uniform`, with one E for all rows. Vectors are written in full,
/// of the tables only the live columns. Tables have a line for every token, or a line for every row to be
/// read through `row_of`. The embedder owns all memory; addresses, widths and strides are baked into a
/// capture, contents are not.
struct dsa_metadata_params {
  row_lengths lengths{};
  index_view requests{};  // q, [rows], lines of the page source
  page_source source{};
  index_map page_map{};         // virtual page to physical page, or null
  query_tokens query{};         // E; query.tokens is C
  std::int32_t topk = 0;        // tokens the indexer keeps
  std::int32_t kpool = 1;       // tokens (and pages) of a pooled key, a power of two; 1: none
  bool line_per_token = false;  // lines of page_table_1 and real_page_table

  std::int32_t* cache_seqlens = nullptr;       // out [rows]
  index_sink cu_seqlens_k{};                   // out [rows + 1] or null
  std::int32_t* cu_seqlens_q = nullptr;        // out [rows + 1]
  std::int32_t* row_of = nullptr;              // out [C] or null
  std::int32_t* expanded = nullptr;            // out [C] or null: causal lengths
  std::int32_t* dsa_cache_seqlens = nullptr;   // out [C]: tokens that sparse attention reads
  index_sink dsa_cu_seqlens_k{};               // out [C + 1] or null
  std::int32_t* paged_mqa_ctx_lens = nullptr;  // out [rows, mqa_tokens] or null: len[r] in every column
  std::int32_t mqa_tokens = 0;                 // W
  std::int32_t* pooled_len = nullptr;          // out [rows], with kpool > 1: len / kpool
  table_sink page_table_1{};                   // out [C or rows, tokens] or null: slots
  table_sink real_page_table{};                // out [C or rows, pages] or null
  table_sink pooled_table{};                   // out [rows, pages of pooled_len], or null
  fault_sink faults{};
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void dsa_metadata(stream_ref at, const dsa_metadata_params& params);

}  // namespace stepgraph
