#pragma once

#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "kernels/launch.cuh"
#include "kernels/sparse/index_k_cache_op.hpp"

/// The index-K gather's own launch. Its output is packed, so all live tokens of a batch are one range that
/// can be cut into equal parts: no row needs a block of its own and none is longer than the others, and the
/// sums that say where a row's tokens go are wanted by every block anyway. The tile driver would sum the
/// lengths once more for each tile.
namespace stepgraph {

struct gather_shape {
  int threads = 256;
  int in_flight = 4;  // pieces of 16 bytes that a thread has under way
  int blocks_a_multiprocessor = 4;

  constexpr int tokens() const { return threads / key_piece::a_key * in_flight; }  // of a part
};

template <int threads>
struct gather_team {
  __device__ static int rank() { return static_cast<int>(threadIdx.x); }
  __device__ static constexpr int size() { return threads; }
};

/// The place of ascending packed rows, by the first packed rows of a round of rows.
struct packed_place {
  const std::int64_t* first;  // of the rows of this round, and the round's end
  int row;                    // of them
  int base;                   // the round's first row
  __device__ get_k_and_s_op::place operator()(std::int64_t packed) {
    while (packed >= first[row + 1]) ++row;
    return {base + row, packed - first[row]};
  }
};

/// The last of `count` (a power of two) entries that is not past `packed`.
__device__ __forceinline__ int last_not_past(const std::int64_t* first, int count, std::int64_t packed) {
  int low = 0;
  for (int step = count / 2; step > 0; step /= 2)
    if (first[low + step] <= packed) low += step;
  return low;
}

// grid: a few blocks a multiprocessor, no more than the captured tokens have parts
// every block sums the lengths of all rows, then moves every gridDim-th part of the live packed rows; block 0
// writes the sums, too
template <gather_shape shape>
__global__ void __launch_bounds__(shape.threads, shape.blocks_a_multiprocessor)
    run_gather(const __grid_constant__ get_k_and_s_op op) {
  wait_for_predecessor();
  using scan = cub::BlockScan<std::int64_t, shape.threads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename scan::TempStorage storage;
  __shared__ std::int64_t first[shape.threads + 1];
  gather_team<shape.threads> team;
  const get_k_and_s_params& p = op.p;
  const int rank = team.rank();
  const bool writes_sums = blockIdx.x == 0;
  if (writes_sums && rank == 0 && p.cu_seqlens_k) p.cu_seqlens_k.store(0, 0);
  std::int64_t before = 0, part = blockIdx.x;
  for (int base = 0; base < p.lengths.rows; base += shape.threads) {
    const int row = base + rank;
    const std::int64_t length = row < p.lengths.rows ? p.lengths.length(row) : 0;
    std::int64_t sum = 0, total = 0;
    scan(storage).ExclusiveSum(length, sum, total);
    if (base > 0) __syncthreads();  // the sums of the round before are still read
    first[rank] = before + sum;
    if (rank == 0) first[shape.threads] = before + total;
    if (writes_sums && row < p.lengths.rows) {
      if (p.cu_seqlens_k) p.cu_seqlens_k.store(row + 1, before + sum + length);
      op.row_reports(row, length, before + sum);
    }
    __syncthreads();
    const std::int64_t all = before + total, end = all < p.capacity ? all : p.capacity;
    while (part * shape.tokens() < end) {
      const std::int64_t from = part * shape.tokens(), begin = from > before ? from : before;
      const std::int64_t to = from + shape.tokens();
      op.template move<shape.in_flight>(
          team, begin, to < end ? to : end,
          packed_place{first, last_not_past(first, shape.threads, begin), base});
      if (to > end) break;  // the rest of this part belongs to the next round
      part += gridDim.x;
    }
    before = all;
  }
}

template <gather_shape shape>
void launch_gather(stream_ref at, const get_k_and_s_op& op) {
  const std::int64_t rows = op.p.lengths.rows;
  const std::int64_t captured = std::min(op.p.capacity, rows * op.p.lengths.cap);
  const std::int64_t parts = (captured + shape.tokens() - 1) / shape.tokens();
  const std::int64_t most = std::int64_t{shape.blocks_a_multiprocessor} * at.where().multiprocessors();
  launch<get_k_and_s_op>(at, get_k_and_s_op::name, run_gather<shape>,
                         dim3(static_cast<unsigned>(std::min(parts, most))), dim3(shape.threads), op);
}

}  // namespace stepgraph
