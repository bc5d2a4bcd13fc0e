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
  const int first_j = Tile::trees && p.op.tree_mask ? 0 : p.token_of(i * Tile::query_rows);
  return max(0, work.base() + first_j + 1 - p.op.window) / Tile::kv_tokens;
}

template <class Tile>
__device__ __forceinline__ query_tile_costs costs_of(const split_params& p, const row_work& work) {
  return {Tile::query_rows, static_cast<std::uint32_t>(p.group),
          static_cast<std::uint32_t>(max(work.base(), 0)), Tile::kv_tokens};
}

/// Room in the cache of a row whose pages are listed by `page_indptr`.
inline __device__ __noinline__ int listed_capacity(const split_params& p, int row) {
  return static_cast<int>(min(row_pages::of(p.op, row).capacity, std::int64_t{p.capacity}));
}

/// Cost and tiles of a row of several query tiles. `many_tiles_apart` is the same out of the way of the straight code:
/// a block that starts waits for its code to be fetched, jumped over or not.
template <class Tile>
__device__ __forceinline__ int2 many_tiles(const split_params& p, int tokens, int length, int query_tiles) {
  if (p.op.window > 0) {
    // what a query tile's tokens span with their windows, wherever that begins in a tile
    const int span = Tile::trees && p.op.tree_mask ? 64 : Tile::query_rows / p.group + 2;
    const int all_tiles = (length + Tile::kv_tokens - 1) / Tile::kv_tokens;
    const int tiles = max(1, min(all_tiles, (p.op.window + span) / Tile::kv_tokens + 2)) + Tile::overhead;
    return make_int2(query_tiles * tiles, tiles);
  }
  const query_tile_costs costs = costs_of<Tile>(p, {.tokens = tokens, .length = length});
  return make_int2(costs.before(query_tiles) + query_tiles * Tile::overhead, 0);
}

template <class Tile>
__device__ __noinline__ int2 many_tiles_apart(const split_params& p, int tokens, int length,
                                              int query_tiles) {
  return many_tiles<Tile>(p, tokens, length, query_tiles);
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
    if (__builtin_expect(op.page_indptr.data != nullptr, false)) capacity = listed_capacity(p, row);
    if (op.step_kv.keys) capacity += work.tokens;
    work.length = min(max(length, 0), capacity);
    if (__builtin_expect(report && work.tokens > 0 && work.length != length, false))
      report_fault(p, row, row_status::length_clamped, length);
  } else {
    work.first_token = begin;
    work.tokens = end - begin;
    work.length = length;
  }
  work.query_tiles = (work.tokens * p.group + Tile::query_rows - 1) / Tile::query_rows;
  if (__builtin_expect(work.query_tiles <= 1, true)) {
    const int all_tiles = (work.length + Tile::kv_tokens - 1) / Tile::kv_tokens;
    work.tiles = max(1, all_tiles - first_kv_tile<Tile>(p, work, 0)) + Tile::overhead;
    work.cost = work.query_tiles * work.tiles;
  } else {
    const int2 many = Tile::rare_apart ? many_tiles_apart<Tile>(p, work.tokens, work.length, work.query_tiles)
                                       : many_tiles<Tile>(p, work.tokens, work.length, work.query_tiles);
    work.cost = many.x;
    work.tiles = many.y;
  }
  return work;
}

/// A block's share of the step: one KV head, and KV tiles [begin, end) of the concatenation of all rows'
/// query tiles. note: neighbouring blocks do the same tiles for all KV heads at about the same time, since a
/// token's heads lie side by side in memory. A group is such a set of blocks; the first `longer` of them have
/// a tile more than the others' `share`. Each live row begins with `switch_tiles` that hold nothing: the time that a
/// block's change to it takes.
struct block_work {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t share;
  std::int32_t longer;
  std::int32_t row_begin;  // where the first row's tiles begin
  std::int32_t row;
  std::int32_t switch_tiles;
  row_work first;  // the first row's

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
  const int thread = threadIdx.x * gridDim.y + blockIdx.y;
  const int row = thread >> p.table_shift, at = (thread & ((1 << p.table_shift) - 1)) * line;
  if (row < p.op.rows && at < p.table_columns)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.op.page_table + row * p.op.page_table_stride + at));
}

/// For fewer tiles than fill all groups: how many of these have any, and how many those have.
inline __device__ __noinline__ int2 few_shares(int total, int min_tiles) {
  const int busy = max(1, total / min_tiles);
  return make_int2(busy, total / busy);
}

/// A row of several that a lane has, with where it begins.
struct placed_row {
  std::int32_t row;
  std::int32_t row_begin;
  row_work work;
};

/// The one of rows [row, last_row), the first of which begins at `row_begin`, that holds tile `at`.
template <class Tile>
__device__ __noinline__ placed_row find_row(const split_params& p, int row, int last_row, int row_begin,
                                            int at, int switch_tiles) {
#pragma unroll 1
  while (true) {
    const row_work work = work_of<Tile>(p, row, false);
    const int cost = work.cost + (work.cost > 0 ? switch_tiles : 0);
    if (row == last_row - 1 || at < row_begin + cost) return {row, row_begin, work};
    row_begin += cost;
    ++row;
  }
}

/// Every warp scans the rows' lengths for itself: one round of loads, no barrier, no node of its own.
template <class Tile>
__device__ block_work plan_block(const split_params& p) {
  const int lane = threadIdx.x % 32;
  const int rows_each = (p.op.rows + 31) / 32;
  const int first_row = min(lane * rows_each, p.op.rows), last_row = min(first_row + rows_each, p.op.rows);
  const bool report = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < 32;
  row_work own{};  // of the lane's last row, or the one that it looks for
  int sum = 0, live = 0;
#pragma unroll 1
  for (int row = first_row; row < last_row; ++row) {
    own = work_of<Tile>(p, row, report);
    sum += own.cost;
    live += own.cost > 0 ? 1 : 0;
  }
  int inclusive = sum, live_inclusive = live;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    if (distance >= p.op.rows) break;
    const int below = __shfl_up_sync(~0u, inclusive, distance);
    const int live_below = Tile::counts_switches ? __shfl_up_sync(~0u, live_inclusive, distance) : 0;
    if (lane >= distance) {
      inclusive += below;
      live_inclusive += live_below;
    }
  }
  const int last = min(p.op.rows, 32) - 1;  // no lane after it has rows
  int total = __shfl_sync(~0u, inclusive, last);
  const int groups = p.block_groups;
  block_work work{};
  if constexpr (Tile::counts_switches) {
    const int all_live = __shfl_sync(~0u, live_inclusive, last);
    if (total >= p.long_share * groups) work.switch_tiles = p.switch_tiles;
    sum += work.switch_tiles * live;
    inclusive += work.switch_tiles * live_inclusive;
    total += work.switch_tiles * all_live;
  }
  int busy = groups;
  if (__builtin_expect(total >= groups * p.min_tiles, true)) {
    work.share = p.by_block_groups(total);
  } else {
    const int2 few = few_shares(total, p.min_tiles);
    busy = few.x;
    work.share = few.y;
  }
  work.longer = total - work.share * busy;
  const int place = min(static_cast<int>(blockIdx.y), busy);
  work.begin = place * work.share + min(place, work.longer);
  work.end = place == busy ? total : work.begin + work.share + (place < work.longer ? 1 : 0);
  // the lane whose rows hold the beginning looks for the row
  const int before = inclusive - sum;
  const unsigned holder = __ballot_sync(~0u, before <= work.begin && work.begin < inclusive);
  if (holder == 0) return work;  // nothing is left for this block
  int row = first_row, row_begin = before;
  if (__builtin_expect(rows_each > 1, false) && (holder >> lane & 1)) {
    const placed_row found = find_row<Tile>(p, row, last_row, row_begin, work.begin, work.switch_tiles);
    row = found.row;
    row_begin = found.row_begin;
    own = found.work;
  }
  const int from = __ffs(holder) - 1;
  work.row = __shfl_sync(~0u, row, from);
  work.row_begin = __shfl_sync(~0u, row_begin, from);
  work.first = {.first_token = __shfl_sync(~0u, own.first_token, from),
                .tokens = __shfl_sync(~0u, own.tokens, from),
                .length = __shfl_sync(~0u, own.length, from),
                .query_tiles = __shfl_sync(~0u, own.query_tiles, from),
                .cost = __shfl_sync(~0u, own.cost, from),
                .tiles = __shfl_sync(~0u, own.tiles, from)};
  return work;
}

}  // namespace stepgraph::detail
