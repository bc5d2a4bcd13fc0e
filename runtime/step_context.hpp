#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "graphs/stream.hpp"
#include "runtime/kv_cache.hpp"

namespace stepgraph {

/// What a step does to its rows. `step_kinds.cpp` says how each maps to buckets.
enum class step_kind {
  decode,  // one token a row
  extend,  // a chunk of tokens a row, ragged: prompts, and decoding rows beside them
};

const char* to_string(step_kind kind) noexcept;

/// True if a row may have more than one token, so that tokens have buckets of their own.
bool is_ragged(step_kind kind) noexcept;

/// All that is baked into one capture besides the executor's own limits and addresses.
struct step_key {
  step_kind kind = step_kind::decode;
  int rows = 0;     // row bucket, B
  int tokens = 0;   // token bucket, C
  int variant = 0;  // the embedder's own: greedy or sampled, an adapter set, an attention path

  friend auto operator<=>(const step_key&, const step_key&) = default;
};

/// "decode, 8 rows, 8 tokens, variant 0"
std::string to_string(const step_key& key);

/// What a step's body works on. All pointers are device memory of the executor, the same for every replay;
/// contents are this step's. Dead rows and tokens are harmless to read (token 0, position 0, the sink slot),
/// the page table beyond a row's live pages is undefined.
struct step_context {
  step_key key;
  stream_ref stream;

  const std::int32_t* live_rows;      // one number, n
  const std::int32_t* requests;       // [rows] line of the request table
  const std::int32_t* query_counts;   // [rows] E
  const std::int32_t* cache_seqlens;  // [rows] tokens in the cache, this step's included
  const std::int32_t* cu_seqlens_q;   // [rows + 1]
  const std::int32_t* cu_seqlens_k;   // [rows + 1]
  const std::int32_t* last_row;  // [rows] the row's last token, which goes to the output head; 0 where E = 0

  const std::int32_t* token_ids;      // [tokens]
  const std::int32_t* positions;      // [tokens]
  const std::int32_t* row_of;         // [tokens]
  const std::int32_t* causal_length;  // [tokens] cached tokens that the token sees, itself included
  const std::int32_t* out_cache_loc;  // [tokens] KV slot to store at

  const std::int32_t* page_table;  // [rows, page_columns]
  std::int64_t page_table_stride;  // entries
  std::int64_t page_columns;
  int page_shift;  // log2 of the page size
  const kv_cache_view* kv;

  std::int32_t* next_token;      // [rows], for the body to write: the sampled token, negative for none
  std::span<std::byte> scratch;  // as many bytes as the step's definition asked for; shared by all steps
  fault_sink faults;             // where the body's own kernels report
};

}  // namespace stepgraph
