#pragma once

#include <cstdint>

#include "kernels/page_source.hpp"
#include "runtime/step_context.hpp"

namespace stepgraph::bench {

/// What the benchmark owns around a step, for bodies that need more than the step's context says. Request r is
/// row r.
struct step_environment {
  page_source source{};                    // request table, page-granular
  const std::int32_t* seq_lens = nullptr;  // [rows] tokens before the step
  std::int64_t width = 0;                  // captured, tokens
  int max_query_count = 1;                 // most tokens of a row
  // of a sparse step, else null
  const std::int32_t* topk_indices = nullptr;  // [tokens, topk] positions that an indexer would have kept
  std::uint8_t* index_cache = nullptr;         // [layers, pages, page bytes] the indexer's keys
  std::uint8_t* index_keys = nullptr;          // [index_capacity, key bytes] gathered
  std::uint32_t* index_scales = nullptr;       // [index_capacity]
  std::int64_t index_capacity = 0;

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
