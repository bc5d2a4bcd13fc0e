#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/reference/batch.hpp"

namespace stepgraph::reference {

/// Tokens the sparse attention reads for causal length `x`: min(x, topk), or with pooled keys
/// min(floor(x / kpool) * kpool, topk) + x mod kpool.
std::int64_t dsa_len(std::int64_t x, std::int64_t topk, std::int64_t kpool);

struct dsa_options {
  std::int64_t topk = 2048;
  std::int64_t kpool = 1;
  bool line_per_token = false;      // expanded tables; false: one line a row, to be read through row_of
  bool token_table = false;         // write page_table_1
  std::int64_t token_columns = 0;   // width of page_table_1; 0: cap
  std::int64_t mqa_tokens = 0;      // W of paged_mqa_ctx_lens; 0: not written
  std::int64_t pooled_columns = 0;  // width of pooled_table; 0: page_columns
  output_rule page_table_1;
  output_rule real_page_table;
  output_rule pooled_table;
};

struct dsa_output {
  vector_output cache_seqlens;      // [B]
  vector_output cu_seqlens_k;       // [B + 1]
  vector_output cu_seqlens_q;       // [B + 1]
  vector_output expanded;           // [C] causal lengths
  vector_output dsa_cache_seqlens;  // [C]
  vector_output dsa_cu_seqlens_k;   // [C + 1]
  vector_output row_of;             // [C]
  table_output page_table_1;        // [C or B, token_columns]; no lines unless asked for
  table_output real_page_table;     // [C or B, page_columns]
  table_output paged_mqa_ctx_lens;  // [B, W], every line defined; no lines unless asked for
  vector_output pooled_len;         // [B]; empty unless kpool > 1
  table_output pooled_table;        // [B, pooled_columns]; no lines unless kpool > 1
  std::vector<fault> faults;
};

/// DSA metadata of decode, verify and draft-extend: one definition for all.
dsa_output dsa_metadata(const batch& in, const dsa_options& options);

/// The static variant's batch: every E is the one number `E`.
batch with_equal_tokens(batch in, std::int64_t E);

struct compressed_input {
  std::int64_t ratio = 4;         // k, a power of two
  std::int64_t P = 128;           // page size in raw tokens, a multiple of the ratio where indices are made
  std::int64_t page_columns = 0;  // of the page table
  std::int64_t T = 0;             // live tokens
  std::vector<std::int64_t> c;    // [C] causal length; not read for dead tokens
  std::vector<std::int64_t> out_loc;  // raw output slots, may be fewer than tokens
  std::function<std::int64_t(std::int64_t t, std::int64_t p)> page_table;  // page p of token t
  std::vector<std::int64_t> line;  // [C] the token's line of the page table; empty: all in range
  std::int64_t page_lines = 0;     // lines of the page table
  bool indices = true;             // write page_indices
  std::int64_t capacity = 0;       // columns of page_indices; 0: P / ratio * page_columns
  std::int64_t out_loc_skip = -1;
  output_rule page_indices;
};

struct compressed_output {
  vector_output out_loc;         // [C]
  vector_output positions;       // [C]
  vector_output length;          // [C]
  vector_output length_clamped;  // [C]
  table_output page_indices;     // [C, capacity]; no lines unless asked for
  std::vector<fault> faults;     // rows are tokens here
};

/// Compressed attention's metadata at one ratio (C4, C128, any power of two).
compressed_output compressed_metadata(const compressed_input& in);

/// The input for a batch: its causal lengths, its own output slots and pages.
compressed_input compressed_from(const batch& in, std::int64_t ratio);

}  // namespace stepgraph::reference
