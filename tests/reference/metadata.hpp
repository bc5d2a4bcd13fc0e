#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/reference/batch.hpp"

namespace stepgraph::reference {

struct token_inputs_options {
  std::int64_t out_cache_loc_skip = -1;
  std::vector<std::int64_t> depth;  // [C] depth of each token in its tree; empty for chains
};

struct token_inputs_output {
  vector_output row_of;         // [C]
  vector_output position;       // [C]
  vector_output causal_length;  // [C]
  vector_output out_cache_loc;  // [C]
  vector_output last_row;       // [B]
  std::vector<fault> faults;
};

/// Per token: its row, position, causal length and output slot S(q, base + j); per row: the token for the
/// output head.
token_inputs_output token_inputs(const batch& in, const token_inputs_options& options = {});

/// How `cu_seqlens_q` is made.
enum class cu_seqlens_q_mode { left_alone, cumsum_tokens, rows_times_stride };

struct decode_options {
  bool page_tables = true;  // false: lengths and prefix sums only
  output_rule page_table;
  // sliding window, by one map or the other, never both
  std::optional<index_map> full_to_swa;   // slot to slot
  std::optional<index_map> swa_page_map;  // page to page
  output_rule swa_page_table;
  bool swa_slots = true;  // of the live tokens, too
  std::int64_t swa_out_cache_loc_skip = -1;
  // multi-head graph metadata
  cu_seqlens_q_mode cu_seqlens_q = cu_seqlens_q_mode::left_alone;
  std::int64_t q_stride = 0;
};

struct decode_output {
  vector_output cache_seqlens;      // [B]
  vector_output cu_seqlens_k;       // [B + 1]
  vector_output cu_seqlens_q;       // [B + 1]
  vector_output swa_out_cache_loc;  // [C]; empty without a sliding window or its slots
  table_output page_table;          // [B, page_columns]; no lines where tables are skipped
  table_output swa_page_table;      // [B, page_columns]; no lines without a sliding window
  std::vector<fault> faults;
};

/// Lengths, their prefix sums, and each live row's pages; the same pages in the window's pool.
decode_output decode_metadata(const batch& in, const decode_options& options = {});

/// As decode, for decode, verify and draft-extend alike; `options` says how `cu_seqlens_q` is made.
decode_output multi_head_metadata(const batch& in, const decode_options& options);

/// As decode, with `cu_seqlens_q` the prefix sums of the query tokens.
decode_output draft_extend_metadata(const batch& in, decode_options options = {});

struct draft_steps_options {
  std::int64_t steps = 1;
  decode_options decode;
  std::int64_t out_cache_loc_skip = -1;
};

struct draft_steps_output {
  // one per draft step
  std::vector<vector_output> cache_seqlens;
  std::vector<vector_output> cu_seqlens_k;
  std::vector<vector_output> out_cache_loc;
  std::vector<vector_output> position;
  // for the last step's lengths
  table_output page_table;
  table_output swa_page_table;
  std::vector<fault> faults;
};

/// All draft decodes of a round: step `k` is a decode whose lengths are seq_lens + k + 1, whatever the
/// batch's delta.
draft_steps_output draft_steps_metadata(const batch& in, const draft_steps_options& options);

}  // namespace stepgraph::reference
