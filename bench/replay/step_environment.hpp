#pragma once

#include <cstdint>

#include "kernels/page_source.hpp"
#include "runtime/step_context.hpp"

namespace stepgraph::bench {

/// What the benchmark owns around a step, for bodies that need more than the step's context says. Request r is
/// row r.
struct step_environment {
  page_source source{};                        // request table, page-granular
  const std::int32_t* seq_lens = nullptr;      // [rows] tokens before the step
  std::int64_t width = 0;                      // captured, tokens
  int max_query_count = 1;                     // most tokens of a row
  const std::int32_t* topk_indices = nullptr;  // [tokens, topk] what an indexer would have kept, or null

  /// Lengths of the step, its own tokens included.
  row_lengths lengths(const step_context& step) const {
    return {.live_rows = step.live_rows,
            .rows = step.key.rows,
            .seq_lens = seq_lens,
            .delta_by_row = step.query_counts,
            .cap = width};
  }
};

}  // namespace stepgraph::bench
