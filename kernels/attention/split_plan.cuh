#pragma once

#include "kernels/attention/query_tile_costs.hpp"
#include "kernels/attention/row_pages.hpp"
#include "kernels/attention/split_tile.cuh"

namespace stepgraph::detail {

/// What one row asks for, from device lengths.
struct row_work {
  std::int32_t first_token;  // of the row, packed
  std::int32_t tokens;       // E
  std::int32_t length;       // in the cache, new tokens included
  std::int32_t query_tiles;
  std::int32_t cost;   // KV tiles of all its query tiles, with their overhead, for each KV head
  std::int32_t tiles;  // of its only query tile, or with a window of each; one where nothing is seen

  __device__ std::int32_t base() const { return length - tokens; }
};

/// A fault is rare and its report long: kept out of the kernels' straight code.
inline __device__ __noinline__ void report_fault(const split_params& p, int row, row_status status,
                                                 std::int64_t value) {
  p.op.faults.report(op_id::paged_attention, row, status, value);
}

/// KV tile that query tile `i` of a row begins in, by its first token's window.
template <class Tile>
__device__ __forceinline__ int first_kv_tile(const split_params& p, const row_work& work, int i) {
  if (p.op.window <= 0) return 0;
  const int first_j = Tile::trees && p.op.tree_mask ? 0 : i * Tile::query_rows / p.group;
  return max(0, work.base() + first_j + 1 - p.op.window) / Tile::kv_tokens;
}

template <class Tile>
__device__ __forceinline__ query_tile_costs costs_of(const split_params& p, const row_work& work) {
  return {Tile::query_rows, static_cast<std::uint32_t>(p.group),
          static_cast<std::uint32_t>(max(work.base(), 0)), Tile::kv_tokens};
}

/// note: all loads before any branch
template <class Tile>
__device__ __forceinline__ row_work work_of(const split_params& p, int row, bool report) {
  const paged_attention_params& op = p.op;
  const std::int32_t begin = op.cu_seqlens_q[row], end = op.cu_seqlens_q[row + 1];
  const std::int32_t length = op.cache_seqlens[row];
  row_work work{};
  if constexpr (Tile::guarded) {
    work.first_token = min(max(begin, 0), op.tokens);
    work.tokens = min(max(end, work.first_token), op.tokens) - work.first_token;
    int capacity = p.capacity;
    if (op.page_indptr.data)
      capacity = static_cast<int>(min(row_pages::of(op, row).capacity, std::int64_t{p.capacity}));
    if (op.step_kv.keys) capacity += work.tokens;
    work.length = min(max(length, 0), capacity);
    if (report && work.tokens > 0 && work.length != length)
      report_fault(p, row, row_status::length_clamped, length);
  } else {
    work.first_token = begin;
    work.tokens = end - begin;
    work.length = length;
  }
  work.query_tiles = (work.tokens * p.group + Tile::query_rows - 1) / Tile::query_rows;
  const int all_tiles = (work.length + Tile::kv_tokens - 1) / Tile::kv_tokens;
  if (work.query_tiles <= 1) {
    work.tiles = max(1, all_tiles - first_kv_tile<Tile>(p, work, 0)) + Tile::overhead;
    work.cost = work.query_tiles * work.tiles;
  } else if (op.window > 0) {
    // what a query tile's tokens span with their windows, wherever that begins in a tile
    const int span = Tile::trees && op.tree_mask ? 64 : Tile::query_rows / p.group + 2;
    work.tiles = max(1, min(all_tiles, (op.window + span) / Tile::kv_tokens + 2)) + Tile::overhead;
    work.cost = work.query_tiles * work.tiles;
  } else {
    work.cost = costs_of<Tile>(p, work).before(work.query_tiles) + work.query_tiles * Tile::overhead;
  }
  return work;
}

/// A block's share of the step: one KV head, and KV tiles [begin, end) of the concatenation of all rows'
/// query tiles. note: neighbouring blocks do the same tiles for all KV heads at about the same time, since a
/// token's heads lie side by side in memory. A group is such a set of blocks; the first `longer` of them have
/// a tile more than the others' `share`.
struct block_work {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t share;
  std::int32_t longer;
  std::int32_t row_begin;  // where the first row's tiles begin
  std::int32_t row;

  /// The group that has tile `at`.
  __device__ std::int32_t group_of(std::int32_t at) const {
    const bool first = at < longer * (share + 1);
    return (at - (first ? 0 : longer)) / (share + (first ? 1 : 0));
  }
};

/// Asks the second-level cache for what every block reads first, before the predecessor is over: the rows'
/// lengths, and the beginnings of their page lists. No value is taken from it.
__device__ __forceinline__ void prefetch_plan(const split_params& p) {
  constexpr int line = 32;  // entries of a line of the cache
  if (blockIdx.x != 0) return;
  for (int i = threadIdx.x; i * line <= p.op.rows; i += blockDim.x) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.op.cu_seqlens_q + i * line));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.op.cache_seqlens + min(i * line, p.op.rows - 1)));
  }
  if (p.op.page_indptr.data) return;
  // some thousand lines in all, at least four a row and no more than it has room for; powers of two, since nothing
  // waits for a division here
  const int columns = static_cast<int>(min(p.op.page_columns, std::int64_t{1} << 20));
  const int room = 32 - __clz((columns - 1) / line), even = 10 - (32 - __clz(p.op.rows - 1));
  const int shift = max(2, min(room, even));
  const int thread = threadIdx.x * gridDim.y + blockIdx.y;
  const int row = thread >> shift, at = (thread & ((1 << shift) - 1)) * line;
  if (row < p.op.rows && at < columns)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.op.page_table + row * p.op.page_table_stride + at));
}

/// Every warp scans the rows' lengths for itself: one round of loads, no barrier, no node of its own.
template <class Tile>
__device__ block_work plan_block(const split_params& p) {
  const int lane = threadIdx.x % 32;
  const int rows_each = (p.op.rows + 31) / 32;
  const int first_row = min(lane * rows_each, p.op.rows), last_row = min(first_row + rows_each, p.op.rows);
  const bool report = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < 32;
  int sum = 0;
#pragma unroll 1
  for (int row = first_row; row < last_row; ++row) sum += work_of<Tile>(p, row, report).cost;
  int inclusive = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(~0u, inclusive, distance);
    if (lane >= distance) inclusive += below;
  }
  const int total = __shfl_sync(~0u, inclusive, 31), groups = p.block_groups;
  block_work work{};
  const int busy = max(1, min(groups, total / p.min_tiles));
  work.share = total / busy;
  work.longer = total - work.share * busy;
  const int place = min(static_cast<int>(blockIdx.y), busy);
  work.begin = place * work.share + min(place, work.longer);
  work.end = place == busy ? total : work.begin + work.share + (place < work.longer ? 1 : 0);
  // the lane whose rows hold the beginning looks for the row
  const int before = inclusive - sum;
  const unsigned holder = __ballot_sync(~0u, before <= work.begin && work.begin < inclusive);
  if (holder == 0) return work;  // nothing is left for this block
  int row = first_row, row_begin = before;
  if (rows_each > 1 && (holder >> lane & 1))
#pragma unroll 1
    for (; row < last_row - 1; ++row) {
      const int cost = work_of<Tile>(p, row, false).cost;
      if (work.begin < row_begin + cost) break;
      row_begin += cost;
    }
  const int from = __ffs(holder) - 1;
  work.row = __shfl_sync(~0u, row, from);
  work.row_begin = __shfl_sync(~0u, row_begin, from);
  return work;
}

}  // namespace stepgraph::detail
