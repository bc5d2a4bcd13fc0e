#pragma once

#include <cub/block/block_scan.cuh>

#include "kernels/launch.cuh"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

constexpr int tile_threads = 256;

/// The threads of one block.
class block_team {
 public:
  using scan = cub::BlockScan<std::int32_t, tile_threads>;
  using storage = typename scan::TempStorage;
  __device__ explicit block_team(storage& shared) : shared_(shared) {}

  __device__ static int rank() { return threadIdx.x; }
  __device__ static constexpr int size() { return tile_threads; }
  __device__ static void sync() { __syncthreads(); }

  __device__ host_team::sum exclusive_sum(std::int32_t value) {
    host_team::sum result{};
    scan(shared_).ExclusiveSum(value, result.before, result.total);
    __syncthreads();  // the storage is used again
    return result;
  }

 private:
  storage& shared_;
};

/// The tiles of all rows past their first, by index in their concatenation, shared out over the blocks.
template <class Op>
__device__ void help(const Op& op, block_team& team, std::int32_t (&first_tile)[tile_threads]) {
  const int rows = op.rows();
  std::int64_t tiles_before = 0;  // of the rows in earlier rounds of this loop
  for (int base = 0; base < rows; base += tile_threads) {
    const int mine = base + static_cast<int>(threadIdx.x);
    const std::int64_t columns = mine < rows ? op.live_columns(mine) : 0;
    const std::int32_t tiles =
        columns > Op::tile_columns ? static_cast<std::int32_t>((columns - 1) / Op::tile_columns) : 0;
    if (!__syncthreads_or(tiles)) continue;
    const host_team::sum sum = team.exclusive_sum(tiles);
    first_tile[threadIdx.x] = sum.before;
    __syncthreads();
    // this block's share: the indices congruent to its number
    std::int64_t index = blockIdx.x;
    if (index < tiles_before) index += (tiles_before - index + gridDim.x - 1) / gridDim.x * gridDim.x;
    for (; index < tiles_before + sum.total; index += gridDim.x) {
      const auto wanted = static_cast<std::int32_t>(index - tiles_before);
      int low = 0, high = tile_threads - 1;  // the last row whose first tile is not past the wanted one
      while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first_tile[middle] <= wanted)
          low = middle;
        else
          high = middle - 1;
      }
      const std::int64_t begin = (std::int64_t{wanted} - first_tile[low] + 1) * Op::tile_columns;
      const std::int64_t end = op.live_columns(base + low);
      op.tile(team, base + low, begin, end < begin + Op::tile_columns ? end : begin + Op::tile_columns);
    }
    tiles_before += sum.total;
    __syncthreads();  // first_tile is written again
  }
}

// grid: max(rows + 1, two blocks a multiprocessor); one block for an op of vectors alone
// block 0 makes the vectors, block 1 + r the first tile of row r, all of them what is left of longer rows
template <class Op>
__global__ void __launch_bounds__(tile_threads) run_tiles(const __grid_constant__ Op op) {
  __shared__ block_team::storage scan_storage;
  wait_for_predecessor();
  block_team team(scan_storage);
  if constexpr (Op::tile_columns == 0) {
    op.vectors(team);
  } else {
    __shared__ std::int32_t first_tile[tile_threads];
    const int row = static_cast<int>(blockIdx.x) - 1;
    if (row < 0) {
      op.vectors(team);
    } else if (row < op.rows()) {
      const std::int64_t columns = op.live_columns(row);
      if (columns > 0) op.tile(team, row, 0, columns < Op::tile_columns ? columns : Op::tile_columns);
    }
    help(op, team, first_tile);
  }
}

template <class Op>
void launch_tiles_cuda(stream_ref at, const Op& op) {
  // an op of vectors alone is block 0 alone
  const int blocks = Op::tile_columns == 0 ? 1 : std::max(op.rows() + 1, 2 * at.where().multiprocessors());
  launch<Op>(at, Op::name, run_tiles<Op>, dim3(blocks), dim3(tile_threads), op);
}

}  // namespace stepgraph
