#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/columns.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// Per live token t: slots[t, i] = table[line, indices[t, i]] for i < topk, -1 where the index is negative, or
/// past the table (reported, with the token as its row), or the entry negative. The line is row_of[t], or t
/// itself where row_of is null: decode, or a table expanded to a line a token. The embedder owns all memory;
/// addresses and numbers are baked into a capture, contents are not.
struct top_k_to_slots_params {
  const std::int32_t* live_tokens = nullptr;  // T, one number in device memory
  std::int32_t tokens = 0;                    // C, captured
  const std::int32_t* row_of = nullptr;       // [C] lines of the table, or null: line t
  index_view indices{};                       // [C, index_columns] int32, lines `index_stride` apart
  std::int64_t index_stride = 0;              // entries
  std::int64_t index_columns = 0;             // at least topk
  std::int32_t topk = 0;                      // indices of a token, any number
  const std::int32_t* table = nullptr;        // [table_lines, table_columns] slots
  std::int64_t table_stride = 0;              // entries
  std::int32_t table_lines = 0;
  std::int64_t table_columns = 0;
  table_sink slots{};                     // out [C, topk columns or more]; its `skip` must be -1
  std::int32_t* count = nullptr;          // out [C] or null: non-negative entries, 0 for a dead token
  std::int32_t* last_plus_one = nullptr;  // out [C] or null: index of the last such entry + 1, at least 1;
                                          // 0 for a dead token
  fault_sink faults{};
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void top_k_to_slots(stream_ref at, const top_k_to_slots_params& params);

}  // namespace stepgraph
