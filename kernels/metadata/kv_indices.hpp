#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// CSR of the KV slots of tokens [start[r], len[r]) of each row. `indptr` is written in full and never
/// clamped; entries past the capacity are not written, and their rows reported. There is no `tail`: rows lie one
/// after the other, and what lies past indptr[rows] is undefined. The embedder owns all memory; addresses and
/// numbers are baked into a capture, contents are not.
struct kv_indices_params {
  row_lengths lengths{};
  index_view requests{};  // q, [rows], lines of the page source
  page_source source{};
  index_map page_map{};                 // virtual page to physical page, or null
  index_map slot_map{};                 // slot to slot, instead of a page map, or null
  const std::int32_t* start = nullptr;  // [rows] or null: 0; clamped to [0, len] and reported
  std::int32_t skip = -1;               // index where there is no slot: -1, or 0 for the sink
  index_sink indptr{};                  // out [rows + 1]; int64 where rows * cap passes 2^31 - 1
  index_sink indices{};                 // out [capacity]
  std::int64_t capacity = 0;
  fault_sink faults{};
};

/// CSR of each row's prefix indices followed by the indices of its query tokens; no `tail`, as above.
struct unified_kv_indices_params {
  row_lengths lengths{};                         // n and cap: a prefix is clamped to [0, cap] and reported
  query_tokens query{};                          // E, how many extend indices a row has
  index_view prefix_indptr{};                    // [rows + 1]; entries past n are not read
  const std::int32_t* prefix_indices = nullptr;  // [prefix_count]
  std::int64_t prefix_count = 0;
  const std::int32_t* extend_indices = nullptr;  // [extend_count]
  std::int64_t extend_count = 0;
  const std::int32_t* extend_start = nullptr;  // [rows] where a row's lie, or null: at cu_seqlens_q[r]
  std::int32_t skip = -1;  // for entries that are negative, or outside their array (reported)
  index_sink indptr{};     // out [rows + 1], never clamped
  index_sink indices{};    // out [capacity]
  std::int64_t capacity = 0;
  fault_sink faults{};
};

/// Enqueue the ops: one launch each. Throw `invalid_argument` naming the field that cannot be.
void kv_indices(stream_ref at, const kv_indices_params& params);
void unified_kv_indices(stream_ref at, const unified_kv_indices_params& params);

}  // namespace stepgraph
