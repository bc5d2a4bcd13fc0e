#pragma once

#include <type_traits>

#include "kernels/attention/mma.cuh"
#include "kernels/attention/split_segments.cuh"

namespace stepgraph::detail {

/// What a block holds beside its pipeline stages.
template <class Tile>
struct held_pages {
  static constexpr int tiles = 8;                     // of a ring, more than are ever on their way
  std::int32_t pages[tiles][Tile::kv_tokens];         // page entry of each token of a coming tile
  alignas(8) std::uint16_t live[tiles][Tile::warps];  // tokens of a stage that are there, a bit each, by warp
  row_work work;  // of the segment at hand, kept out of registers while keys come
  segment s;
  std::uint64_t received;  // barrier: the part that the cluster's other block sends is there

  /// Of the tokens whose keys a group of warps shares, the first in the lowest bit.
  using group_bits =
      std::conditional_t<Tile::warp_tokens == 16, std::uint16_t,
                         std::conditional_t<Tile::warp_tokens == 32, std::uint32_t, std::uint64_t>>;
  static constexpr group_bits all_live = static_cast<group_bits>(~group_bits{0});
  __device__ group_bits live_of(int stage, int group) const {
    return reinterpret_cast<const group_bits*>(live[stage])[group];
  }
};

/// Brings KV tiles of one (row, KV head) into shared memory, a stage each. Page entries travel `stages`
/// tiles ahead of their keys, through shared memory too: an entry may come from device memory, and nothing
/// waits for it then.
template <class T, int HeadSize, class Tile>
struct kv_loader {
  static_assert(Tile::stages < held_pages<Tile>::tiles,
                "the ring holds the entries of all tiles on their way");
  const split_params& p;
  held_pages<Tile>& held;
  const std::int32_t* table;
  segment_span range;
  unsigned pages;            // of the pool
  std::int64_t head_offset;  // elements, of this thread's piece of a line
  std::uint64_t policy;      // of the cache, for the pool's keys and values
  std::uint32_t to;          // shared address of this thread's first piece in stage 0
  bool careful = false;      // words of live tokens are left for those who multiply
  std::int32_t bad = 0;      // an entry that is no page, if this thread has seen one; such an entry is not 0
  static constexpr int first_rounds = (Tile::stages * 16 + 31) / 32;

  __device__ kv_loader(const split_params& params, const row_work& row, const segment& now,
                       const segment_span& positions, std::uint32_t stages, held_pages<Tile>& ring)
      : p(params), held(ring), range(positions) {
    table = row_pages::of(p.op, now.row).entries;
    policy = cache_policy(row.query_tiles <= 1);
    pages = page_limit(p.op.cache);
    const int piece = threadIdx.x % Tile::line_vectors;
    const int token = threadIdx.x / 32 * 16 + threadIdx.x % 32 / Tile::line_vectors;
    head_offset = now.kv_head * p.op.cache.head_stride + piece * 8;
    to = stages + token * Tile::line_bytes + swizzle(piece, token) * 16;
  }

  /// note: one comparison each, since every tile pays for them
  __device__ bool inside(int position) const {
    return !Tile::guarded ||
           static_cast<unsigned>(position - range.begin) < static_cast<unsigned>(range.end - range.begin);
  }

  __device__ bool listed(int position) const {
    return !Tile::guarded || static_cast<unsigned>(position - range.begin) <
                                 static_cast<unsigned>(range.listed_end - range.begin);
  }

  /// Asks for the entries of the first tiles, whose keys cannot wait for a round of copies: all at once, a warp
  /// those of its own tokens. Entries outside the range are not read.
  __device__ void ask_first(int first_tile, std::int32_t (&entries)[first_rounds]) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int round = 0; round < first_rounds; ++round) {
      const int i = round * 32 + lane,
                position = (first_tile + i / 16) * Tile::kv_tokens + warp * 16 + i % 16;
      entries[round] = 0;
      if (i < Tile::stages * 16 && listed(position))
        entries[round] = load_global(table + (position >> p.op.page_shift));
    }
  }

  /// Puts them where `start` looks.
  __device__ void keep_first(int first_tile, const std::int32_t (&entries)[first_rounds]) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int round = 0; round < first_rounds; ++round) {
      const int i = round * 32 + lane;
      if (i < Tile::stages * 16)
        held.pages[static_cast<unsigned>(first_tile + i / 16) % held_pages<Tile>::tiles][warp * 16 + i % 16] =
            entries[round];
    }
  }

  /// Starts the copies of tile `tile`'s entries.
  __device__ void start_look_up(int tile) const {
    const int lane = threadIdx.x % 32, token = threadIdx.x / 32 * 16 + lane;  // a warp looks up its own
    if (lane >= 16) return;
    const int position = tile * Tile::kv_tokens + token;
    const bool live = listed(position);
    copy_word_async(shared_address(&held.pages[static_cast<unsigned>(tile) % held_pages<Tile>::tiles][token]),
                    table + (live ? position >> p.op.page_shift : 0), live);
  }

  /// Starts the copies of tile `tile`, whose entries are there, into `stage`. What is not there becomes
  /// zeros, so that nothing it holds reaches arithmetic.
  __device__ void start(int tile, int stage) {
    const kv_pages_view& cache = p.op.cache;
    // a warp brings 16 tokens; its lanes look up one each, twice over
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_token = warp * 16 + lane % 16;
    const int first = tile * Tile::kv_tokens, position = first + own_token;
    const std::int32_t page = held.pages[static_cast<unsigned>(tile) % held_pages<Tile>::tiles][own_token];
    const int in_page = position & ((1 << p.op.page_shift) - 1);
    const std::uint32_t stage_to = to + stage * Tile::stage_bytes;
    const bool known = static_cast<unsigned>(page) < pages;
    if (__builtin_expect(Tile::guarded && (!__all_sync(~0u, known) || first < range.begin ||
                                           first + Tile::kv_tokens > range.listed_end || careful),
                         false))
      return start_partly(tile, stage, stage_to, page);
    const std::int64_t offset = static_cast<std::uint32_t>(page) * cache.page_stride +
                                static_cast<std::uint32_t>(in_page) * cache.token_stride;
    const T* const keys = static_cast<const T*>(cache.keys) + head_offset;
    const T* const values = static_cast<const T*>(cache.values) + head_offset;
#pragma unroll split_few_registers ? 2 : Tile::segment_shared ? Tile::passes / 2 : Tile::passes
    for (int pass = 0; pass < Tile::passes; ++pass) {
      const std::int64_t at = __shfl_sync(~0u, offset, lane / Tile::line_vectors + pass * Tile::pass_tokens);
      const std::uint32_t line =
          stage_to + pass * Tile::pass_tokens * Tile::line_bytes ^ swizzle(0, pass * Tile::pass_tokens) * 16;
      if constexpr (Tile::read_once) {
        copy_async(line, keys + at, policy);
        copy_async(line + Tile::keys_bytes, values + at, policy);
      } else {
        copy_async(line, keys + at);
        copy_async(line + Tile::keys_bytes, values + at);
      }
    }
  }

  /// The same for a tile of which some may not be there, or is one of the step's own tokens.
  __device__ void start_partly(int tile, int stage, std::uint32_t stage_to, std::int32_t page) {
    const kv_pages_view& cache = p.op.cache;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int position = tile * Tile::kv_tokens + warp * 16 + lane % 16;
    bool there = inside(position);
    if (listed(position) && static_cast<unsigned>(page) >= pages) {
      there = false;
      bad = page;
    }
    const int in_page = position & ((1 << p.op.page_shift) - 1);
    const std::int64_t offset = !there             ? -1
                                : listed(position) ? page * cache.page_stride + in_page * cache.token_stride
                                                   : position * p.op.step_kv.token_stride;
    if (careful) {
      const std::uint32_t bits = __ballot_sync(~0u, there);
      if (lane == 0) held.live[stage][warp] = static_cast<std::uint16_t>(bits);
    }
    if ((tile + 1) * Tile::kv_tokens > range.listed_end && p.op.step_kv.keys)
      return start_mixed(tile, offset, stage_to);
    const T* const keys = static_cast<const T*>(cache.keys) + head_offset;
    const T* const values = static_cast<const T*>(cache.values) + head_offset;
#pragma unroll 1
    for (int pass = 0; pass < Tile::passes; ++pass) {
      const std::int64_t at = __shfl_sync(~0u, offset, lane / Tile::line_vectors + pass * Tile::pass_tokens);
      const std::uint32_t line =
          stage_to + pass * Tile::pass_tokens * Tile::line_bytes ^ swizzle(0, pass * Tile::pass_tokens) * 16;
      copy_async(line, keys + (at < 0 ? 0 : at), at >= 0);
      copy_async(line + Tile::keys_bytes, values + (at < 0 ? 0 : at), at >= 0);
    }
  }

  /// The copies of a tile that holds some of the step's own tokens.
  __device__ void start_mixed(int tile, std::int64_t offset, std::uint32_t stage_to) const {
    const int first = threadIdx.x % 32 / Tile::line_vectors;
    const row_work& work = held.work;
    // as `head_offset`, of the step's own keys and values, from position 0 on
    const std::int64_t own_offset =
        (std::int64_t{work.first_token} - work.base()) * p.op.step_kv.token_stride +
        held.s.kv_head * p.op.step_kv.head_stride + static_cast<int>(threadIdx.x) % Tile::line_vectors * 8;
#pragma unroll 1
    for (int pass = 0; pass < Tile::passes; ++pass) {
      const int token = first + pass * Tile::pass_tokens;
      const std::int64_t at = __shfl_sync(~0u, offset, token);
      const bool own =
          tile * Tile::kv_tokens + static_cast<int>(threadIdx.x) / 32 * 16 + token >= range.listed_end;
      const std::int64_t from = at < 0 ? 0 : at + (own ? own_offset : head_offset);
      const std::uint32_t line =
          stage_to + pass * Tile::pass_tokens * Tile::line_bytes ^ swizzle(0, pass * Tile::pass_tokens) * 16;
      copy_async(line, static_cast<const T*>(own ? p.op.step_kv.keys : p.op.cache.keys) + from, at >= 0);
      copy_async(line + Tile::keys_bytes,
                 static_cast<const T*>(own ? p.op.step_kv.values : p.op.cache.values) + from, at >= 0);
    }
  }
};

}  // namespace stepgraph::detail
