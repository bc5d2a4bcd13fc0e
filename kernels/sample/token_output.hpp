#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

namespace stepgraph {

/// Where and how an op that chooses a token a row writes it.
struct token_output {
  const std::int32_t* target_ids =
      nullptr;                         // [vocab_size] or null: target id of each id of a reduced vocabulary
  const std::int32_t* line = nullptr;  // [rows] or null: entry of next_token that a row writes, else its own
  std::int32_t* feed_token = nullptr;  // out [rows] or null: next_token, but 0 where that is negative

  STEPGRAPH_HD std::int64_t line_of(int row) const { return line ? line[row] : row; }

  /// `id` as the model has it, negative for none.
  STEPGRAPH_HD void store(std::int32_t* next_token, int row, std::int32_t id) const {
    const std::int32_t token = id >= 0 && target_ids ? target_ids[id] : id;
    next_token[line_of(row)] = token;
    if (feed_token) feed_token[row] = token >= 0 ? token : 0;
  }
};

}  // namespace stepgraph
