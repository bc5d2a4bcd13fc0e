#pragma once

#include "kernels/attention/split_plan.cuh"

namespace stepgraph::detail {

/// A run of KV tiles of one unit, done by one block in one go.
struct segment {
  std::int32_t row;
  std::int32_t kv_head;
  std::int32_t first_line;  // of the unit's packed query rows in the row's, token-major
  std::int32_t lines;       // packed query rows, 1 to the tile's
  std::int32_t first_tile;  // KV tiles of the row [first_tile, last_tile)
  std::int32_t last_tile;
  std::int32_t unit_begin;  // in the concatenation
  std::int32_t unit_tiles;
  // and, by `place_parts`
  std::int32_t part;  // which of the unit's `parts` this is
  std::int32_t parts;
  bool sends;              // the cluster's first block merges this one's part with its own
  bool leads;              // this block is that one
  std::int32_t counter;    // of the unit
  std::int64_t partials;   // first float of part 0
  std::int32_t first_gap;  // floats from part 0 to part 1
  std::int32_t gap;        // floats from any further part to the next

  __device__ std::int64_t slot(int which) const {
    return partials + (which == 0 ? 0 : first_gap + std::int64_t{which - 1} * gap);
  }
};

/// The positions that some query of a segment's tile sees, [begin, end), and those that all of them see; the
/// segment's KV tiles that hold any of the former.
struct segment_span {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t all_begin;
  std::int32_t all_end;
  std::int32_t first_tile;
  std::int32_t last_tile;
  std::int32_t listed_end;  // positions up to here are in the cache, those after among the step's own

  /// The same, but that all of its tiles are to be masked.
  __device__ segment_span masked() const {
    segment_span all = *this;
    all.all_end = 0;
    return all;
  }
};

template <class Tile>
__device__ __forceinline__ segment_span span_of(const split_params& p, const row_work& work,
                                                const segment& s) {
  const int base = work.base(), window = p.op.window;
  const int first_j = p.token_of(s.first_line), last_j = p.token_of(s.first_line + s.lines - 1);
  const bool tree = Tile::trees && p.op.tree_mask != nullptr;
  segment_span span;
  span.begin = window > 0 ? max(0, base + (tree ? 0 : first_j) + 1 - window) : 0;
  span.end = max(span.begin, min(work.length, base + last_j + 1));
  span.all_begin = window > 0 ? max(0, base + last_j + 1 - window) : 0;
  span.all_end = tree ? base : base + first_j + 1;
  span.listed_end = p.op.step_kv.keys ? max(span.begin, min(span.end, base)) : span.end;
  span.first_tile = max(s.first_tile, span.begin / Tile::kv_tokens);
  span.last_tile = min(s.last_tile, (span.end + Tile::kv_tokens - 1) / Tile::kv_tokens);
  return span;
}

/// Where a query tile's KV tiles lie among its row's.
struct query_tile_place {
  std::int32_t query_tile = 0;
  std::int32_t begin = 0;
  std::int32_t tiles = 0;
};

/// The query tile that holds KV tile `offset` of its row's, which has several. Lanes of a warp search together, unless
/// `next` is not 0: then it is that one, and begins there.
template <class Tile>
__device__ __forceinline__ query_tile_place find_among(const split_params& p, const row_work& work,
                                                       int offset, int next) {
  if (p.op.window > 0) {
    const int i = offset / work.tiles;
    return {i, i * work.tiles, work.tiles};
  }
  const query_tile_costs costs = costs_of<Tile>(p, work);
  if (next > 0) return {next, offset, static_cast<int>(costs.of(next)) + Tile::overhead};
  const auto before = [&](int i) { return static_cast<int>(costs.before(i)) + i * Tile::overhead; };
  int low = 0, high = work.query_tiles;  // the tile is in [low, high)
#pragma unroll 1
  while (high - low > 1) {
    const int step = (high - low + 31) / 32, i = low + static_cast<int>(threadIdx.x) % 32 * step;
    const unsigned not_after = __ballot_sync(~0u, i < high && before(i) <= offset);
    low += (31 - __clz(not_after)) * step;
    high = min(high, low + step);
  }
  const int begin = before(low);
  return {low, begin, before(low + 1) - begin};
}

/// The same, apart. note: numbers alone, since what is handed over by reference would lie in memory
template <class Tile>
__device__ __noinline__ query_tile_place find_apart(const split_params& p, int tokens, int length,
                                                    int query_tiles, int tiles, int offset, int next) {
  return find_among<Tile>(p, {.tokens = tokens, .length = length, .query_tiles = query_tiles, .tiles = tiles},
                          offset, next);
}

template <class Tile>
__device__ __forceinline__ query_tile_place find_query_tile(const split_params& p, const row_work& work,
                                                            int offset, int next) {
  if (__builtin_expect(work.query_tiles == 1, true)) return {0, 0, work.tiles};
  if constexpr (Tile::rare_apart)
    return find_apart<Tile>(p, work.tokens, work.length, work.query_tiles, work.tiles, offset, next);
  else
    return find_among<Tile>(p, work, offset, next);
}

/// The segment that begins at tile `at` of the concatenation. Returns where the next one does;
/// batch-invariant chunks belong to the group in whose share they begin, and `lines` is 0 where none begins
/// before the unit's end. `next_query_tile` is kept from call to call, 0 at a block's first segment of a row.
template <class Tile>
__device__ std::int32_t next_segment(const split_params& p, const block_work& block, const row_work& work,
                                     int row, std::int32_t row_begin, std::int32_t at, int& next_query_tile,
                                     segment& s) {
  const int kv_heads = p.op.kv_heads, group = p.group;
  const query_tile_place place = find_query_tile<Tile>(p, work, at - row_begin, next_query_tile);
  const int query_tile = place.query_tile, tiles = place.tiles;
  next_query_tile = query_tile + 1;
  const std::int32_t unit_begin = row_begin + place.begin;
  int tile = at - unit_begin, count;
  s.row = row;
  s.kv_head = blockIdx.x;
  s.sends = s.leads = false;
  s.first_line = query_tile * Tile::query_rows;
  s.lines = min(Tile::query_rows, work.tokens * group - s.first_line);
  if (Tile::invariant && p.op.batch_invariant) {
    // note: several query tiles are work enough without chunks
    const int chunk = work.query_tiles > 1
                          ? tiles
                          : max(split_chunk_tiles, (tiles + split_max_chunks - 1) / split_max_chunks);
    const int begun = (tile + chunk - 1) / chunk * chunk;
    if (begun >= tiles || unit_begin + begun >= block.end) {
      s.lines = 0;
      return min(unit_begin + tiles, block.end);
    }
    tile = begun;
    count = min(chunk, tiles - tile);
    s.part = tile / chunk;
    s.parts = (tiles + chunk - 1) / chunk;
    s.counter = row * kv_heads + s.kv_head;
    const int lines = work.tokens * group;
    const std::int64_t first =
        p.partials_by_row ? std::int64_t{row} * (Tile::query_rows / group) : work.first_token;
    s.partials = (first * p.op.heads + s.kv_head * lines) * p.max_chunks * Tile::slot_line;
    s.first_gap = s.gap = lines * Tile::slot_line;
  } else {
    count = min(tiles - tile, block.end - at);
    s.unit_begin = unit_begin;
    s.unit_tiles = tiles;
    s.parts = count < tiles ? 2 : 1;  // or more
  }
  const int first_tile = first_kv_tile<Tile>(p, work, query_tile) - Tile::overhead;
  s.first_tile = first_tile + max(tile, Tile::overhead);
  s.last_tile = first_tile + max(tile + count, Tile::overhead);
  return unit_begin + tile + count;
}

/// Where a segment's part of its unit goes, and how many there are. note: nothing of it is needed before the
/// segment's end, so it can be asked for while the first keys come
template <class Tile>
__device__ __forceinline__ void place_parts(const split_params& p, const block_work& block, segment& s) {
  if (Tile::invariant && p.op.batch_invariant) return;
  s.part = 0;
  s.counter = 0;
  s.partials = s.first_gap = s.gap = 0;
  if (s.parts == 1) return;
  // a block has two slots: one for a unit that began before it, one for a unit that it begins and does not end
  const int group_now = blockIdx.y, first_group = block.group_of(s.unit_begin);
  const int last_group = block.group_of(s.unit_begin + s.unit_tiles - 1);
  const int cluster = Tile::clusters ? p.cluster : 1;  // groups that leave a part together, 1 or 2
  const int first_cluster = first_group >> (cluster - 1), mine = group_now >> (cluster - 1);
  if (cluster == 2) {
    const bool second = group_now % 2 == 1;
    s.sends = second && first_group < group_now;
    s.leads = !second && last_group > group_now;
  }
  s.part = mine - first_cluster;
  s.parts = (last_group >> (cluster - 1)) - first_cluster + 1;
  s.counter = first_group * p.op.kv_heads + s.kv_head;
  const int slot = Tile::query_rows * Tile::slot_line;
  s.partials = (std::int64_t{2} * s.counter + 1) * slot;
  s.first_gap = (2 * ((first_cluster + 1) * cluster - first_group) * p.op.kv_heads - 1) * slot;
  s.gap = 2 * cluster * p.op.kv_heads * slot;
}

/// Calls `body(work, segment)` for all of a block's segments.
template <class Tile, class Body>
__device__ __forceinline__ void for_each_segment(const split_params& p, const block_work& block,
                                                 Body&& body) {
  if (block.begin >= block.end) return;
  int at = block.begin, row = block.row, row_begin = block.row_begin;
  row_work work = block.first;
  while (true) {
    row_begin += work.cost > 0 ? block.switch_tiles : 0;
    const int row_end = row_begin + work.cost;
    at = max(at, row_begin);
    int next_query_tile = 0;
    while (at < row_end && at < block.end) {
      segment s;
      at = next_segment<Tile>(p, block, work, row, row_begin, at, next_query_tile, s);
      if (s.lines > 0) body(work, s);
    }
    if (at >= block.end) return;
    row_begin = row_end;
    work = work_of<Tile>(p, ++row, false);
  }
}

/// Zeros for dead tokens, those from `end` on, shared by all blocks; the first `threads` threads of each take
/// part.
template <class T, class Tile>
__device__ void clear_dead_tokens(const split_params& p, int end, int threads) {
  if constexpr (!Tile::guarded) return;
  const int live = min(max(end, 0), p.op.tokens);
  if (live == p.op.tokens) return;
  const std::int64_t first = std::int64_t{live} * p.op.heads, last = std::int64_t{p.op.tokens} * p.op.heads;
  const int block = blockIdx.y * gridDim.x + blockIdx.x;
  const std::int64_t thread = std::int64_t{block} * threads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * gridDim.y * threads;
  constexpr int vectors = Tile::head_size / 8;
#pragma unroll 1
  for (std::int64_t i = first * vectors + thread; i < last * vectors; i += step)
    static_cast<uint4*>(p.op.output)[i] = make_uint4(0, 0, 0, 0);
  if (p.op.log_sum_exp)
#pragma unroll 1
    for (std::int64_t i = first + thread; i < last; i += step) p.op.log_sum_exp[i] = -INFINITY;
}

}  // namespace stepgraph::detail
