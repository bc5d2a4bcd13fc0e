#pragma once

#include "kernels/attention/split_tile.cuh"

namespace stepgraph::detail {

/// What one row asks for, from device lengths.
struct row_work {
  std::int32_t first_token = 0;  // of the row, packed
  std::int32_t tokens = 0;       // E
  std::int32_t length = 0;       // in the cache, new tokens included
  std::int32_t first_tile = 0;   // KV tile that the first token's window begins in
  std::int32_t tiles = 0;        // KV tiles from there on; one where there is nothing to see
  std::int32_t query_tiles = 0;
  std::int32_t chunk = 0;        // batch-invariant: KV tiles of all its chunks but the last

  __device__ std::int32_t base() const { return length - tokens; }
  /// In KV tiles; a unit is one (query tile, KV head).
  __device__ std::int64_t cost(int kv_heads) const { return std::int64_t{query_tiles} * kv_heads * tiles; }
};

template <int QueryRows>
__device__ row_work work_of(const split_params& p, int row, bool report) {
  const paged_attention_params& op = p.op;
  row_work work;
  const int first = min(max(op.cu_seqlens_q[row], 0), op.tokens);
  work.first_token = first;
  work.tokens = min(max(op.cu_seqlens_q[row + 1], first), op.tokens) - first;
  if (work.tokens == 0) return work;
  const std::int64_t capacity = op.page_columns << op.page_shift;
  const std::int64_t length = op.cache_seqlens[row];
  work.length = static_cast<std::int32_t>(length < 0 ? 0 : length > capacity ? capacity : length);
  if (report && work.length != length)
    op.faults.report(op_id::paged_attention, row, row_status::length_clamped, length);
  const int group = op.heads / op.kv_heads;
  work.query_tiles = (work.tokens * group + QueryRows - 1) / QueryRows;
  if (op.window > 0) work.first_tile = max(0, work.base() + 1 - op.window) / split_kv_tokens;
  work.tiles = max(1, (work.length + split_kv_tokens - 1) / split_kv_tokens - work.first_tile);
  // note: several query tiles are work enough without chunks
  work.chunk = work.query_tiles > 1 ? work.tiles
                                    : max(split_chunk_tiles, (work.tiles + split_max_chunks - 1) / split_max_chunks);
  return work;
}

/// A block's share of the step: KV tiles [begin, end) of the concatenation of all units of all rows, and the row that it
/// begins in. Every block but the last has `share` tiles.
struct block_work {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t share = 1;
  std::int64_t row_begin = 0;  // where the first row's tiles begin
  std::int32_t row = 0;
};

struct plan_scratch {
  std::int64_t warp_sum[split_warps];
  std::int64_t row_begin;
  std::int32_t row;
};

/// Every block scans the rows' lengths for itself: one round of loads, no node of its own.
template <int QueryRows>
__device__ block_work plan_block(const split_params& p, plan_scratch& scratch) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int rows_each = (p.op.rows + split_threads - 1) / split_threads;
  const int first_row = min(thread * rows_each, p.op.rows), last_row = min(first_row + rows_each, p.op.rows);
  std::int64_t sum = 0;
  for (int row = first_row; row < last_row; ++row)
    sum += work_of<QueryRows>(p, row, blockIdx.x == 0).cost(p.op.kv_heads);
  std::int64_t inclusive = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int64_t below = __shfl_up_sync(~0u, inclusive, distance);
    if (lane >= distance) inclusive += below;
  }
  if (lane == 31) scratch.warp_sum[warp] = inclusive;
  __syncthreads();
  std::int64_t total = 0, before = inclusive - sum;
#pragma unroll
  for (int w = 0; w < split_warps; ++w) {
    if (w < warp) before += scratch.warp_sum[w];
    total += scratch.warp_sum[w];
  }
  block_work work;
  work.share = max((total + p.grid - 1) / p.grid, static_cast<std::int64_t>(p.min_tiles));
  work.begin = min(blockIdx.x * work.share, total);
  work.end = min(work.begin + work.share, total);
  if (before <= work.begin && work.begin < before + sum) {
    for (int row = first_row; row < last_row; ++row) {
      const std::int64_t cost = work_of<QueryRows>(p, row, false).cost(p.op.kv_heads);
      if (work.begin < before + cost) {
        scratch.row = row;
        scratch.row_begin = before;
        break;
      }
      before += cost;
    }
  }
  __syncthreads();
  work.row = scratch.row;
  work.row_begin = scratch.row_begin;
  return work;
}

/// A run of KV tiles of one unit, done by one block in one go.
struct segment {
  std::int32_t row;
  std::int32_t kv_head;
  std::int32_t first_line;   // of the unit's packed query rows in the row's, token-major
  std::int32_t lines;        // packed query rows, 1 to the tile's
  std::int32_t first_tile;   // KV tiles of the row [first_tile, last_tile)
  std::int32_t last_tile;
  std::int32_t part;         // which of the unit's `parts` this is
  std::int32_t parts;
  std::int32_t counter;      // of the unit
  std::int64_t partials;     // first float of part 0
  std::int64_t first_gap;    // floats from part 0 to part 1
  std::int64_t gap;          // floats from any further part to the next

  __device__ std::int64_t slot(int which) const {
    return partials + (which == 0 ? 0 : first_gap + (which - 1) * gap);
  }
};

/// The segment that begins at tile `at` of the concatenation. Returns where the next one does; batch-invariant chunks
/// belong to the block in whose share they begin, and `lines` is 0 where none begins before the unit's end.
template <class Tile>
__device__ std::int64_t next_segment(const split_params& p, const block_work& block, const row_work& work, int row,
                                     std::int64_t row_begin, std::int64_t at, segment& s) {
  const int kv_heads = p.op.kv_heads, group = p.op.heads / kv_heads;
  const std::int64_t offset = at - row_begin;
  const int unit = static_cast<int>(offset / work.tiles);
  const std::int64_t unit_begin = row_begin + std::int64_t{unit} * work.tiles;
  int tile = static_cast<int>(at - unit_begin), count;
  s.row = row;
  s.kv_head = unit % kv_heads;
  s.first_line = unit / kv_heads * Tile::query_rows;
  s.lines = min(Tile::query_rows, work.tokens * group - s.first_line);
  if (p.op.batch_invariant) {
    const int begun = (tile + work.chunk - 1) / work.chunk * work.chunk;
    if (begun >= work.tiles || unit_begin + begun >= block.end) {
      s.lines = 0;
      return min(unit_begin + work.tiles, block.end);
    }
    tile = begun;
    count = min(work.chunk, work.tiles - tile);
    s.part = tile / work.chunk;
    s.parts = (work.tiles + work.chunk - 1) / work.chunk;
    s.counter = row * kv_heads + s.kv_head;
    const int lines = work.tokens * group;
    const std::int64_t first = p.partials_by_row ? std::int64_t{row} * (Tile::query_rows / group) : work.first_token;
    s.partials = (first * p.op.heads + s.kv_head * lines) * p.max_chunks * Tile::slot_line;
    s.first_gap = s.gap = std::int64_t{lines} * Tile::slot_line;
  } else {
    count = static_cast<int>(min(static_cast<std::int64_t>(work.tiles - tile), block.end - at));
    // a block has two slots: one for a unit that began before it, one for a unit that it begins and does not end
    const std::int64_t first_block = unit_begin / block.share;
    s.part = static_cast<int>(blockIdx.x - first_block);
    s.parts = static_cast<int>((unit_begin + work.tiles - 1) / block.share - first_block) + 1;
    s.counter = static_cast<int>(first_block);
    const std::int64_t slot = std::int64_t{Tile::query_rows} * Tile::slot_line;
    s.partials = (2 * first_block + 1) * slot;
    s.first_gap = slot;
    s.gap = 2 * slot;
  }
  s.first_tile = work.first_tile + tile;
  s.last_tile = s.first_tile + count;
  return unit_begin + tile + count;
}

}  // namespace stepgraph::detail
