#pragma once

#include "kernels/metadata/kv_split_plan.hpp"
#include "kernels/metadata/row_vectors.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `kv_split_plan`.
struct kv_split_plan_op {
  static constexpr const char* name = "kv_split_plan";
  static constexpr op_id id = op_id::kv_split_plan;
  static constexpr int tile_columns = 0;  // vectors only
  kv_split_plan_params p;

  STEPGRAPH_HD static std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
  STEPGRAPH_HD std::int64_t tiles(int row) const {
    return up(guard_off("frozen-plan") ? p.lengths.cap : p.lengths.length(row), p.tile);
  }

  /// Tiles of a row's chunks, where an even share is `share` tiles.
  STEPGRAPH_HD std::int64_t chunk_tiles(std::int64_t row_tiles, std::int64_t share) const {
    const std::int64_t least = up(row_tiles, p.max_splits);
    return p.batch_invariant || share < least ? least : share;
  }

  /// The even share: four chunks a worker, as few as the capacity leaves after one chunk a row.
  template <class Team>
  STEPGRAPH_HD std::int64_t share_of(Team& team) const {
    if (p.batch_invariant) return 1;
    const std::int64_t all = sum_before(team, p.lengths.rows, [&](int row) { return tiles(row); });
    const std::int64_t room = p.capacity - p.lengths.rows;
    const std::int64_t wanted = std::int64_t{4} * p.workers;
    const std::int64_t chunks = room < wanted ? room : wanted;
    const std::int64_t share = chunks > 0 ? up(all, chunks) : all;
    return share > 1 ? share : 1;
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const std::int64_t share = share_of(team);
    const auto count = [&](int row) {
      const std::int64_t mine = tiles(row);
      return mine > 0 ? up(mine, chunk_tiles(mine, share)) : 0;
    };
    scan_rows(team, p.lengths.rows, p.cu_chunks, count,
              [&](int row, std::int64_t, std::int64_t) { p.lengths.length_reported(row, p.faults, id); });
    team.sync();  // cu_chunks is read
    const std::int32_t all = p.cu_chunks[p.lengths.rows];
    for (int i = team.rank(); i < all; i += team.size()) {
      const int row = find_row(i);
      const std::int64_t length = p.lengths.length(row), step = chunk_tiles(tiles(row), share) * p.tile;
      const std::int64_t begin = (i - p.cu_chunks[row]) * step;
      p.chunks[i] = {row, static_cast<std::int32_t>(begin),
                     static_cast<std::int32_t>(begin + step < length ? begin + step : length),
                     i - p.cu_chunks[row]};
    }
  }

 private:
  /// The last row whose chunks begin at or before `chunk`.
  STEPGRAPH_HD int find_row(int chunk) const {
    int low = 0, high = p.lengths.rows - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (p.cu_chunks[middle] <= chunk)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

}  // namespace stepgraph
