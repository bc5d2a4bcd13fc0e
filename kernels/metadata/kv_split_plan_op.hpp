#pragma once

#include "kernels/columns.hpp"
#include "kernels/metadata/kv_split_plan.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `kv_split_plan`.
struct kv_split_plan_op {
  static constexpr const char* name = "kv_split_plan";
  static constexpr op_id id = op_id::kv_split_plan;
  static constexpr int tile_columns = 0;  // vectors only
  kv_split_plan_params p;

  /// ceil(a / b) of numbers below 2^31.
  STEPGRAPH_HD static std::uint32_t up(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }
  STEPGRAPH_HD std::uint32_t tiles(std::int64_t length) const {
    const std::int64_t of = guard_off("frozen-plan") ? p.lengths.cap : length;
    return of > 0 ? up(static_cast<std::uint32_t>(of), p.tile) : 0;
  }

  /// The even share of `all` tiles: four chunks a worker, as few as the capacity leaves after one chunk a row.
  STEPGRAPH_HD std::int64_t share_of(std::int64_t all) const {
    const std::int64_t room = p.capacity - p.lengths.rows;
    const std::int64_t wanted = std::int64_t{4} * p.workers;
    const std::int64_t chunks = room < wanted ? room : wanted;
    const std::int64_t share = chunks > 0 ? (all + chunks - 1) / chunks : all;
    return share > 1 ? share : 1;
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int rows = p.lengths.rows;
    // note: a thread's first row stays in registers
    std::int64_t first_length = 0, mine = 0;
    for (int row = team.rank(); row < rows; row += team.size()) {
      const std::int64_t length = p.lengths.length_reported(row, p.faults, id);
      if (row == team.rank()) first_length = length;
      mine += tiles(length);
    }
    const std::int64_t share = p.batch_invariant ? 1 : share_of(team.exclusive_sum(mine).total);
    std::int64_t before = 0;
    if (team.rank() == 0) p.cu_chunks[0] = 0;
    for (int base = 0; base < rows; base += team.size()) {
      const int row = base + team.rank();
      const std::int64_t length = base == 0 ? first_length : row < rows ? p.lengths.length(row) : 0;
      const std::uint32_t row_tiles = row < rows ? tiles(length) : 0;
      const std::int64_t least = up(row_tiles, p.max_splits);
      const std::int64_t each = share < least || p.batch_invariant ? least : share;
      const bool whole = each >= row_tiles;
      const std::int32_t count =
          row_tiles == 0 ? 0
          : whole        ? 1
                         : static_cast<std::int32_t>(up(row_tiles, static_cast<std::uint32_t>(each)));
      const auto sum = team.exclusive_sum(count);
      if (row < rows) {
        p.cu_chunks[row + 1] = static_cast<std::int32_t>(before + sum.before + count);
        write_chunks(row, p.chunks + before + sum.before, count, whole ? length : each * p.tile, length);
      }
      before += sum.total;
    }
  }

 private:
  /// A row's chunks, `step` tokens each.
  STEPGRAPH_HD void write_chunks(int row, kv_split_chunk* to, std::int32_t count, std::int64_t step,
                                 std::int64_t length) const {
    const bool by_four = aligned16(to);
    std::int64_t begin = 0;
    for (std::int32_t k = 0; k < count; ++k, begin += step) {
      const std::int64_t end = begin + step < length ? begin + step : length;
      const kv_split_chunk chunk{row, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), k};
      if (by_four)
        *reinterpret_cast<quad*>(to + k) = quad{{chunk.row, chunk.begin, chunk.end, chunk.index}};
      else
        to[k] = chunk;
    }
  }
};

}  // namespace stepgraph
