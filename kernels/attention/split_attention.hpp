#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::detail {

/// Tile constants of the split-KV kernel that its plan needs; the rest is in split_tile.cuh.
constexpr int split_max_chunks = 32;  // of a row, batch-invariant
constexpr int split_chunk_tiles = 8;  // KV tiles of the shortest chunk, batch-invariant
constexpr int split_invariant_warps = 2;
constexpr std::size_t split_counters = 16384;  // of every workspace, whatever the launch's shape

/// Blocks that fit on one multiprocessor, by shared memory and by registers without spills.
constexpr int split_occupancy(int head_size, int query_warps, int warps) {
  return warps == 8 ? 1 : head_size == 64 && query_warps < 4 ? 3 : 2;
}

/// What may be varied to measure it.
struct split_options {
  int min_tiles = 4;      // KV tiles below which a block's share is not cut further
  int warps = 4;          // of a block with 16 query rows: 4, or 8
  int oversubscribe = 1;  // grid over what is resident at once
  int cluster = 1;        // blocks of a thread block cluster
  bool flat = false;
  int consumers = -1;  // warpgroups of 64 query rows that multiply; 0: warps of 16; -1: as the shape has it
};

/// Everything of a launch that the host decides, from the capture alone.
struct split_plan {
  int consumers = 0;     // 1 or 2: the warpgroup kernel; 0: the warps' kernel
  int query_warps = 1;   // 1, 2 or 4: warps along the packed query rows, 16 rows each
  int warps = 4;         // of a block
  int cluster = 1;       // blocks of a thread block cluster, along the groups
  bool flat = false;
  int block_groups = 0;  // sets of a block for each KV head
  int min_tiles = 0;
  bool partials_by_row = false;  // batch-invariant: partials lie by row rather than by token
  int max_chunks = 1;            // batch-invariant: of a row
  std::size_t counters = 0;      // int32 words at the workspace's beginning, zero between launches
  std::size_t workspace_bytes = 0;
};

/// `warpgroups`: the GPU has their matrix products.
split_plan plan_split(int multiprocessors, bool warpgroups, const paged_attention_params& p,
                      const split_options& options);

/// The kernel's argument.
struct split_params {
  paged_attention_params op;
  std::int32_t capacity;  // cached tokens that the page table has room for
  float* partials;        // after the counters
  std::int32_t* counters;
  std::int32_t cluster;       // block groups whose blocks for a KV head are a cluster
  bool flat;
  std::int32_t block_groups;  // the grid is [kv_heads, block_groups]
  std::int32_t group;         // query heads of a KV head
  std::int32_t min_tiles;
  std::int32_t partials_by_row;
  std::int32_t max_chunks;
};

/// Whether the warpgroup kernel was built for `where` and runs there: Hopper alone.
bool has_warpgroup_products(device where);

void split_attention_cuda(stream_ref at, const paged_attention_params& p, const split_options& options);

}  // namespace stepgraph::detail
