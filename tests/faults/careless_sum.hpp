#pragma once

#include <cstdint>

#include "kernels/sample/row_driver.hpp"

namespace stepgraph {

/// A kernel as an embedder might write one: the token of row 0 is the sum of `count` numbers, none (-1) where
/// that is no token. It reads what it is told to, within the contract or not.
struct careless_sum {
  static constexpr const char* name = "careless_sum";
  struct scratch {};
  const std::int32_t* numbers = nullptr;  // `stride` apart
  std::int64_t stride = 1;
  int count = 0;
  int vocab_size = 0;
  std::int32_t* token = nullptr;

  STEPGRAPH_HD static int rows() { return 1; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int) const {
    if (team.rank() != 0) return;
    std::int64_t sum = 0;
    for (int i = 0; i < count; ++i) sum += numbers[i * stride];
    *token = sum >= 0 && sum < vocab_size ? static_cast<std::int32_t>(sum) : -1;
  }
};

}  // namespace stepgraph
