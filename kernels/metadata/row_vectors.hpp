#pragma once

#include <cstdint>

#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// Writes value(row) as prefix sums, cu [rows + 1]; `visit(row, value, before)` sees every row.
template <class Team, class Value, class Visit>
STEPGRAPH_HD void scan_rows(Team& team, int rows, const index_sink& cu, Value value, Visit visit) {
  std::int64_t before = 0;
  if (team.rank() == 0 && cu) cu.store(0, 0);
  for (int base = 0; base < rows; base += team.size()) {
    const int row = base + team.rank();
    const std::int64_t mine = row < rows ? value(row) : 0;
    const auto sum = team.exclusive_sum(mine);
    if (row < rows) {
      if (cu) cu.store(row + 1, before + sum.before + mine);
      visit(row, mine, before + sum.before);
    }
    before += sum.total;
  }
}

/// cache_seqlens [rows] and cu_seqlens_k [rows + 1] (or null); lengths that had to be clamped are reported.
template <class Team>
STEPGRAPH_HD void write_lengths(Team& team, const row_lengths& lengths, std::int32_t* cache_seqlens,
                                const index_sink& cu_seqlens_k, const fault_sink& faults, op_id op) {
  scan_rows(
      team, lengths.rows, cu_seqlens_k, [&](int row) { return lengths.length_reported(row, faults, op); },
      [&](int row, std::int64_t length, std::int64_t) {
        cache_seqlens[row] = static_cast<std::int32_t>(length);
      });
}

/// Sum of value(row) over rows before `row`, known to all threads of the team.
template <class Team, class Value>
STEPGRAPH_HD std::int64_t sum_before(Team& team, int row, Value value) {
  std::int64_t mine = 0;
  for (int other = team.rank(); other < row; other += team.size()) mine += value(other);
  return team.sum_of(mine);
}

}  // namespace stepgraph
