#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// What every kind of step needs to know of its packed tokens: the tokens of row r are
/// t = cu_seqlens_q[r] + j, j in [0, E[r]). Fixed-size vectors, written in full at every replay; dead rows
/// and tokens get 0, dead output slots `skip`. The embedder owns all memory; addresses and numbers are baked
/// into a capture.
struct token_inputs_params {
  row_lengths lengths{};                       // len, new tokens included
  const std::int32_t* query_counts = nullptr;  // E, [rows]
  std::int32_t max_query_count = 0;            // Emax: E is clamped to [0, Emax]
  std::int32_t tokens = 0;                     // C, captured; tokens past it are dropped and reported
  index_view requests{};                       // q, [rows], lines of the page source
  page_source source{};
  index_map page_map{};                 // virtual page to physical page, or null
  const std::int32_t* depth = nullptr;  // [tokens] depth in its tree, or null: chains
  std::int32_t skip = -1;               // slot of a token that stores nothing: -1, or 0 for the sink

  std::int32_t* cu_seqlens_q = nullptr;  // out [rows + 1], required
  std::int32_t* last_row = nullptr;      // out [rows] or null: the row's last token, 0 where E = 0
  std::int32_t* row_of = nullptr;        // out [tokens], required
  std::int32_t* position = nullptr;  // out [tokens] or null: max(0, c - 1), in a tree max(0, len - E + depth)
  std::int32_t* causal_length = nullptr;  // out [tokens] or null: c = max(0, len - E + j + 1)
  index_sink out_cache_loc{};             // out [tokens] or null: the KV slot the token is stored at
  fault_sink faults{};
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const token_inputs_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void token_inputs(stream_ref at, const token_inputs_params& params);

}  // namespace stepgraph
