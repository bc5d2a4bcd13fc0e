#pragma once

#include <cstdint>

#include "kernels/attention/split_plan.cuh"

namespace stepgraph::detail {

/// Constants of one instantiation of the warpgroup kernel: one warpgroup loads, two multiply, 64 packed query
/// rows each, both with the same keys. Lines of queries, keys and values lie in shared memory as columns of
/// 128 bytes, so that the matrix products read them without bank conflicts. `Guarded`: as
/// split_tile's. `Trees`: for steps with a tree mask; a kernel of its own, since what it takes slows chunks down.
template <int HeadSize, bool Guarded = true, bool Trees = false>
struct warpgroup_tile {
  static constexpr int head_size = HeadSize;
  static constexpr bool guarded = Guarded;
  static constexpr bool trees = Trees;
  static constexpr bool invariant = false;
  static constexpr bool counts_switches = false;
  static constexpr bool rare_apart = false;
  static constexpr bool clusters = false;
  static constexpr int consumers = warpgroup_consumers;
  static constexpr int overhead = 1;  // KV tiles that a query tile costs beside its own
  static constexpr int query_rows = 64 * consumers;
  static constexpr int kv_tokens = 128;
  // note: a stage of values is held until its products are over, a stage of keys only until the scores are
  static constexpr int key_stages = 2;
  static constexpr int value_stages = 3;
  static constexpr int query_stages = 2;
  static constexpr int threads = 128 * (1 + consumers);
  static constexpr int loader_registers = 88;
  static constexpr int consumer_registers = 208;
  // what the warps give is all that they may take
  static_assert(128 * (loader_registers + consumers * consumer_registers) <=
                65536 / threads / 8 * 8 * threads);
  static constexpr int orders = 2;
  static constexpr int line_vectors = HeadSize / 8;  // 16-byte pieces of a line
  static constexpr int columns = HeadSize / 64;      // 128-byte columns of a line
  static constexpr int kv_column_bytes = kv_tokens * 128;
  static constexpr int kv_bytes = columns * kv_column_bytes;  // keys, or values, of a stage
  static constexpr int query_column_bytes = query_rows * 128;
  static constexpr int query_bytes = columns * query_column_bytes;
  static constexpr int slot_line = HeadSize + 4;  // floats of a partial result a query row
  static constexpr int keys_at = 0;
  static constexpr int values_at = key_stages * kv_bytes;
  static constexpr int queries_at = values_at + value_stages * kv_bytes;
  static constexpr int held_at = queries_at + query_stages * query_bytes;
  static constexpr int words = kv_tokens / 32;
  // two loading warps bring keys, two values
  static constexpr int warp_tokens = kv_tokens / 2;
  static constexpr int warp_words = warp_tokens / 32;
};

/// What the loading warpgroup, which plans, tells the multiplying ones. The last one has no lines.
struct segment_order {
  row_work work;
  segment s;
  segment_span span;
  bool careful = false;  // all tiles are masked, by what words of live tokens say too
  bool bad[2] = {};  // has an entry that is no page, says one loading warp each: it comes again, carefully
};

/// Barriers between the loading warps and the multiplying ones, and small things. `full` phases end when a
/// stage is there, `empty` phases when nobody reads it any more.
template <class Tile>
struct warpgroup_held {
  std::uint64_t full_keys[Tile::key_stages], empty_keys[Tile::key_stages];
  std::uint64_t full_values[Tile::value_stages], empty_values[Tile::value_stages];
  std::uint64_t full_query[Tile::query_stages], empty_query[Tile::query_stages];
  std::uint64_t full_order[Tile::orders], empty_order[Tile::orders];
  std::uint64_t brought;  // an order's keys and values are asked for by all loading threads, an arrival each
  segment_order orders[Tile::orders];
  block_work block;
  std::uint32_t live[Tile::key_stages]
                    [Tile::words];  // of a careful segment: tokens that are there, a bit each
  std::int32_t arrivals;
};

template <class Tile>
constexpr int warpgroup_shared_bytes = Tile::held_at + sizeof(warpgroup_held<Tile>);

/// Where a warp is in a ring of stages, in one register.
template <int Stages>
struct ring_place {
  int at = 0;  // 2 * stage + parity

  __device__ int stage() const { return at >> 1; }
  __device__ std::uint32_t parity() const { return at & 1; }
  __device__ void advance() {
    at += 2;
    if (at >= 2 * Stages) at = at - 2 * Stages ^ 1;
  }

  /// Where it was before it last advanced.
  __device__ ring_place before() const { return {at >= 2 ? at - 2 : (at ^ 1) + 2 * Stages - 2}; }
};

}  // namespace stepgraph::detail
