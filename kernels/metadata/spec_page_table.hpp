#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/columns.hpp"
#include "kernels/guard.hpp"

namespace stepgraph {

/// A page table that an op reads; its lengths say how far.
struct page_table_view {
  const std::int32_t* data = nullptr;  // [lines, columns]
  std::int64_t stride = 0;             // entries between lines
  std::int32_t lines = 0;
  std::int64_t columns = 0;
  const std::int32_t* length = nullptr;  // [lines] entries that count; clamped to [0, columns] and reported
};

/// Page table of sliding-window layers in a speculative step: line t is the first entries of its row's line
/// of `by_row`, followed by the first of its own line of `by_token`. Totals are written for all tokens, lines
/// for live tokens only. The embedder owns all memory; addresses and numbers are baked into a capture.
struct spec_page_table_params {
  const std::int32_t* live_tokens = nullptr;  // T, one number in device memory
  std::int32_t tokens = 0;                    // C, captured
  const std::int32_t* row_of = nullptr;       // [tokens]
  page_table_view by_row{};
  page_table_view by_token{};     // at least `tokens` lines
  table_sink table{};             // out [tokens, columns]
  std::int32_t* total = nullptr;  // out [tokens]: entries of the line, at most table.columns
  fault_sink faults{};            // rows are tokens here
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void spec_page_table(stream_ref at, const spec_page_table_params& params);

}  // namespace stepgraph
