#pragma once

#include <cub/block/block_scan.cuh>

#include "kernels/launch.cuh"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

constexpr int tile_threads = 256;

/// The threads of one block.
class block_team {
 public:
  using scan = cub::BlockScan<std::int64_t, tile_threads, cub::BLOCK_SCAN_WARP_SCANS>;
  using storage = typename scan::TempStorage;
  __device__ explicit block_team(storage& shared) : shared_(shared) {}

  __device__ static int rank() { return threadIdx.x; }
  __device__ static constexpr int size() { return tile_threads; }
  __device__ static void sync() { __syncthreads(); }

  __device__ host_team::sum exclusive_sum(std::int64_t value) {
    host_team::sum result{};
    scan(shared_).ExclusiveSum(value, result.before, result.total);
    __syncthreads();  // the storage is used again
    return result;
  }

 private:
  storage& shared_;
};

/// What a launch of the driver looks like: `x` blocks beside each other, each with a line of its own but the first,
/// `parts` of them for every line.
struct tile_grid {
  int x;
  int parts;
};

/// About two blocks a multiprocessor, never fewer than one a line, unless there are very many lines.
inline tile_grid grid_for(int lines, int multiprocessors) {
  const int wanted = 2 * multiprocessors;
  const int x = std::min(lines, 8 * multiprocessors) + 1;
  return {x, std::max(1, wanted / x)};
}

/// Columns of the head that each of a line's blocks begins with: the line in equal parts, unless that is too little
/// for a block or more than `most`.
__device__ __forceinline__ std::int32_t head_columns(std::int32_t columns, std::int32_t parts, std::int32_t most) {
  constexpr std::int32_t least = 1024;  // 16 bytes a thread
  const std::int32_t even = parts > 1 ? static_cast<std::int32_t>(static_cast<std::uint32_t>(columns) / parts) : columns;
  if (even < least) return least;
  return even < most ? (even + 128) & ~127 : most;  // note: 512-byte steps keep accesses aligned
}

/// What a block keeps of the lines it may help with.
template <class Op>
struct help_storage {
  typename Op::line line[tile_threads];
  std::int32_t first_tile[tile_threads];  // of the line, among the tiles of this round
};

/// The tiles of all lines past their heads, by index in their concatenation, shared out over the blocks. `mine` is
/// the line of this thread's rank.
template <class Op>
__device__ void help(const Op& op, block_team& team, typename Op::line mine, help_storage<Op>& shared) {
  constexpr std::int32_t most = 2 * Op::tile_columns;
  const int lines = op.lines();
  const auto parts = static_cast<std::int32_t>(gridDim.y);
  const std::int64_t blocks = std::int64_t{gridDim.x} * gridDim.y;
  std::int64_t tiles_before = 0;  // of the lines in earlier rounds of this loop
  for (int base = 0; base < lines; base += tile_threads) {
    const int index_of_mine = base + static_cast<int>(threadIdx.x);
    if (base > 0) mine = index_of_mine < lines ? op.load(index_of_mine) : typename Op::line{};
    const std::int64_t rest = mine.columns - std::int64_t{head_columns(mine.columns, parts, most)} * parts;
    const auto tiles =
        rest > 0 ? static_cast<std::int32_t>((rest + Op::tile_columns - 1) / Op::tile_columns) : 0;
    if (!__syncthreads_or(tiles)) continue;
    const host_team::sum sum = team.exclusive_sum(tiles);
    shared.first_tile[threadIdx.x] = static_cast<std::int32_t>(sum.before);
    shared.line[threadIdx.x] = mine;
    __syncthreads();
    // this block's share: the indices congruent to its number
    std::int64_t index = std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
    if (index < tiles_before) index += (tiles_before - index + blocks - 1) / blocks * blocks;
    for (; index < tiles_before + sum.total; index += blocks) {
      const auto wanted = static_cast<std::int32_t>(index - tiles_before);
      int low = 0;  // the last line whose first tile is not past the wanted one
#pragma unroll
      for (int step = tile_threads / 2; step > 0; step /= 2)
        if (shared.first_tile[low + step] <= wanted) low += step;
      const typename Op::line line = shared.line[low];
      const std::int64_t begin = std::int64_t{head_columns(line.columns, parts, most)} * parts +
                                 std::int64_t{wanted - shared.first_tile[low]} * Op::tile_columns;
      const std::int64_t end = begin + Op::tile_columns;
      op.tile(team, base + low, line, static_cast<std::int32_t>(begin),
              static_cast<std::int32_t>(end < line.columns ? end : line.columns));
    }
    tiles_before += sum.total;
    __syncthreads();  // the shared lines are written again
  }
}

// grid: (lines + 1) x parts, about two blocks a multiprocessor; one block for an op of vectors alone
// block (0, 0) makes the vectors, block (1 + i, part) that head of line i, all of them what is left of longer lines
template <class Op>
__global__ void __launch_bounds__(tile_threads) run_tiles(const __grid_constant__ Op op) {
  __shared__ block_team::storage scan_storage;
  wait_for_predecessor();
  block_team team(scan_storage);
  if constexpr (Op::tile_columns == 0) {
    op.vectors(team);
  } else {
    __shared__ help_storage<Op> shared;
    const int lines = op.lines();
    // note: read before the block's own work, so that help need not wait for it
    const auto mine = static_cast<int>(threadIdx.x) < lines ? op.load(threadIdx.x) : typename Op::line{};
    if (blockIdx.x == 0) {
      if (blockIdx.y == 0) op.vectors(team);
    } else {
      for (int index = static_cast<int>(blockIdx.x) - 1; index < lines; index += static_cast<int>(gridDim.x) - 1) {
        const auto line = op.load(index);
        const std::int64_t head = head_columns(line.columns, gridDim.y, 2 * Op::tile_columns);
        const std::int64_t begin = blockIdx.y * head;
        if (begin >= line.columns) continue;
        op.tile(team, index, line, static_cast<std::int32_t>(begin),
                static_cast<std::int32_t>(begin + head < line.columns ? begin + head : line.columns));
      }
    }
    help(op, team, mine, shared);
  }
}

template <class Op>
void launch_tiles_cuda(stream_ref at, const Op& op) {
  dim3 grid(1);  // an op of vectors alone is one block
  if constexpr (Op::tile_columns > 0) {
    const tile_grid shape = grid_for(op.lines(), at.where().multiprocessors());
    grid = dim3(shape.x, shape.parts);
  }
  launch<Op>(at, Op::name, run_tiles<Op>, grid, dim3(tile_threads), op);
}

}  // namespace stepgraph
