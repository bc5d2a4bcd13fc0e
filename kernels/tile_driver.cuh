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

/// What a launch of the driver looks like: `x` blocks beside each other, each with a line of its own but the
/// first, `parts` of them for every line.
struct tile_grid {
  int x;
  int parts;
};

/// About two blocks a multiprocessor (one where there are few lines), never fewer than one a line, unless
/// there are very many of these. A line's blocks are a power of two, so that kernels divide by shifts.
inline tile_grid grid_for(int lines, int multiprocessors, int blocks_a_multiprocessor = 0) {
  if (blocks_a_multiprocessor == 0) blocks_a_multiprocessor = lines > 8 ? 2 : 1;
  const int wanted = blocks_a_multiprocessor * multiprocessors;
  const int x = std::min(lines, 8 * multiprocessors) + 1;
  int parts = 1;
  while (2 * parts * x <= wanted) parts *= 2;
  return {x, parts};
}

/// Columns of the head that each of a line's blocks begins with: the line in equal parts, unless that is too
/// little for a block or more than `most`. Multiples of 128, which keep accesses aligned.
__device__ __forceinline__ std::int32_t head_columns(std::int32_t columns, std::int32_t least,
                                                     std::int32_t most) {
  const auto parts = static_cast<std::int32_t>(gridDim.y);  // a power of two
  const std::int32_t even = (((columns + parts - 1) >> (31 - __clz(parts))) + 127) & ~127;
  return even < least ? least : even < most ? even : most;
}

/// What a block keeps of the lines it may help with.
template <class Op>
struct help_storage {
  typename Op::line line[tile_threads];
  std::int32_t first_tile[tile_threads];  // of the line, among the tiles of this round
};

/// Hands a block its tiles one after another: heads of its own lines, then its share of all tiles past the
/// heads, by index in their concatenation. All threads of the block ask together and get the same answer.
template <class Op>
class tile_queue {
 public:
  /// `mine`: the line of this thread's rank, read early so that help need not wait for it.
  __device__ tile_queue(const Op& op, block_team& team, help_storage<Op>& shared,
                        const typename Op::line& mine)
      : op_(op), team_(team), shared_(shared), mine_(mine), lines_(op.lines()) {}

  int index;
  typename Op::line line;
  std::int32_t begin, end;

  __device__ bool next() { return next_head() || (helps_ && next_shared()); }

  /// Whether some line is longer than all its heads, asked before the block's own work: where none is,
  /// nothing follows that work, and the block ends with it. The same barrier makes the lines read so far
  /// known to the whole block.
  __device__ void ask() {
    shared_.line[threadIdx.x] = mine_;
    int longer = tiles_of(mine_);
    for (int other = tile_threads + static_cast<int>(threadIdx.x); other < lines_; other += tile_threads)
      longer |= tiles_of(op_.load(other));
    helps_ = __syncthreads_or(longer);
  }

 private:
  static constexpr std::int32_t most = 2 * Op::tile_columns;
  static constexpr std::int32_t tile = Op::tile_columns;

  __device__ std::int32_t head(const typename Op::line& of) const {
    return head_columns(of.columns, op_.least_columns(), most);
  }

  /// Tiles past the line's heads.
  __device__ std::int32_t tiles_of(const typename Op::line& of) const {
    const std::int64_t rest = of.columns - std::int64_t{head(of)} * gridDim.y;
    return rest > 0 ? static_cast<std::int32_t>((rest + tile - 1) / tile) : 0;
  }

  __device__ bool next_head() {
    // block 0 of x has the vectors instead
    while (blockIdx.x > 0 && head_index_ < lines_) {
      index = head_index_;
      head_index_ += static_cast<int>(gridDim.x) - 1;
      line = index < tile_threads ? shared_.line[index] : op_.load(index);
      const std::int64_t each = head(line);
      if (set(blockIdx.y * each, each)) return true;
    }
    return false;
  }

  __device__ bool next_shared() {
    while (tile_index_ >= tiles_end_) {
      if (!next_round()) return false;
    }
    const std::int32_t wanted = tile_index_ - tiles_begin_;
    tile_index_ += static_cast<std::int32_t>(gridDim.x * gridDim.y);
    int low = 0;  // the last line whose first tile is not past the wanted one
#pragma unroll
    for (int step = tile_threads / 2; step > 0; step /= 2)
      if (shared_.first_tile[low + step] <= wanted) low += step;
    index = base_ + low;
    line = shared_.line[low];
    return set(std::int64_t{head(line)} * gridDim.y + std::int64_t{wanted - shared_.first_tile[low]} * tile,
               tile);
  }

  /// Scans the next lines, one a thread; false if there are none.
  __device__ bool next_round() {
    base_ += tile_threads;
    if (base_ >= lines_) return false;
    if (base_ > 0) {
      __syncthreads();  // the shared lines are written again
      mine_ = {};
      const int index_of_mine = base_ + static_cast<int>(threadIdx.x);
      if (index_of_mine < lines_) mine_ = op_.load(index_of_mine);
    }
    const std::int32_t tiles = tiles_of(mine_);
    if (!__syncthreads_or(tiles)) return true;
    const host_team::sum sum = team_.exclusive_sum(tiles);
    shared_.first_tile[threadIdx.x] = static_cast<std::int32_t>(sum.before);
    shared_.line[threadIdx.x] = mine_;
    __syncthreads();
    tiles_begin_ = tiles_end_;
    tiles_end_ += static_cast<std::int32_t>(sum.total);
    return true;
  }

  __device__ bool set(std::int64_t from, std::int64_t columns) {
    begin = static_cast<std::int32_t>(from < line.columns ? from : line.columns);
    end = static_cast<std::int32_t>(from + columns < line.columns ? from + columns : line.columns);
    return begin < end;
  }

  const Op& op_;
  block_team& team_;
  help_storage<Op>& shared_;
  typename Op::line mine_;
  int lines_;
  bool helps_ = false;
  int head_index_ = static_cast<int>(blockIdx.x) - 1;
  int base_ = -tile_threads;                      // first line of this round
  std::int32_t tiles_begin_ = 0, tiles_end_ = 0;  // of this round
  std::int32_t tile_index_ = static_cast<std::int32_t>(blockIdx.y * gridDim.x + blockIdx.x);
};

/// Blocks that must fit on a multiprocessor: an op whose `small` is true takes so few registers that the next
/// kernel's blocks find room beside this one's.
template <class Op>
constexpr int min_blocks = 2;
template <class Op>
requires Op::small constexpr int min_blocks<Op> = 4;

// grid: (lines + 1) x parts, about two blocks a multiprocessor; one block for an op of vectors alone
// block (0, 0) makes the vectors, block (1 + i, part) that head of line i, all of them what is left of longer
// lines
//
// note: the successor is let in after the wait and not before it. Else it and its own successor fill
// multiprocessors as blocks of the kernel before this one end, unevenly: that costs long rows 10%.
template <class Op, bool early_trigger = false>
__global__ void __launch_bounds__(tile_threads, min_blocks<Op>) run_tiles(const __grid_constant__ Op op) {
  __shared__ block_team::storage scan_storage;
#if __CUDA_ARCH__ >= 900
  if constexpr (early_trigger) cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  if constexpr (!early_trigger) cudaTriggerProgrammaticLaunchCompletion();
#endif
  block_team team(scan_storage);
  if constexpr (Op::tile_columns == 0) {
    op.vectors(team);
  } else {
    __shared__ help_storage<Op> shared;
    // note: no branch depends on what is loaded here, so that the loads are under way beside the block's own
    const int rank = static_cast<int>(threadIdx.x), last = op.lines() - 1;
    auto mine = op.load(rank < last ? rank : last);
    if (rank > last) mine.columns = 0;
    tile_queue<Op> queue(op, team, shared, mine);
    queue.ask();
    if (blockIdx.x == 0 && blockIdx.y == 0) op.vectors(team);
    while (queue.next()) op.tile(team, queue.index, queue.line, queue.begin, queue.end);
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
