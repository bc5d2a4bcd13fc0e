#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/paged_attention.hpp"
#include "kernels/divisor.hpp"

namespace stepgraph::detail {

/// Tile constants of the split-KV kernel that its plan needs; the rest is in split_tile.cuh.
constexpr int split_max_chunks = 32;  // of a row, batch-invariant
constexpr int split_chunk_tiles = 8;  // KV tiles of the shortest chunk, batch-invariant
constexpr int split_invariant_warps = 2;
constexpr int warpgroup_consumers = 2;         // multiplying warpgroups of a block, 64 query rows each
constexpr std::size_t split_counters = 16384;  // of every workspace, whatever the launch's shape

/// Blocks that fit on one multiprocessor by registers without spills, and on Hopper by shared memory.
constexpr int split_occupancy(int head_size, int query_warps, int warps) {
  return warps == 8 ? 1 : head_size == 64 && query_warps == 1 ? 3 : 2;
}

constexpr int split_stages(int head_size) {
  return head_size == 128 ? 3 : 4;
}

/// Shared memory that a launch asks for: stages of keys and values, 16 tokens a warp, and in blocks of eight warps
/// the part that another block of the cluster sends.
constexpr int split_launch_bytes(int head_size, int warps) {
  return split_stages(head_size) * 16 * warps * head_size * 4 + (warps == 8 ? 16 * (head_size + 4) * 4 : 0);
}

/// All that a block takes of what a device lends one: with page entries and small things.
constexpr int split_block_bytes(int head_size, int warps) {
  return split_launch_bytes(head_size, warps) + warps * 512 + 1024;
}

/// What may be varied to measure it.
struct split_options {
  int min_tiles = 4;      // KV tiles below which a block's share is not cut further
  int warps = 0;          // of a block with 16 query rows: 4 or 8; 0: as the shape has it
  int oversubscribe = 1;  // grid over what is resident at once
  int switch_tiles = 3;   // KV tiles in the time that a block takes to change to another row
  int long_share =
      32;  // KV tiles of a share from which on that counts: none is cut where nothing is to be read
  bool bulk = true;
  int warpgroups = -1;  // 1: the warpgroup kernel, 0: the warps' kernel; -1: as the shape has it
};

/// Everything of a launch that the host decides, from the capture alone.
struct split_plan {
  bool warpgroups = false;  // the warpgroup kernel, or the warps' kernel
  int query_warps = 1;      // 1, 2 or 4: warps along the packed query rows, 16 rows each
  int warps = 4;            // of a block
  int cluster = 1;          // blocks of a thread block cluster, along the groups: 1 or 2
  int block_groups = 0;     // sets of a block for each KV head
  int min_tiles = 0;
  int switch_tiles = 0;
  int long_share = 0;
  bool partials_by_row = false;  // batch-invariant: partials lie by row rather than by token
  int max_chunks = 1;            // batch-invariant: of a row
  std::size_t counters = 0;      // int32 words at the workspace's beginning, zero between launches
  std::size_t workspace_bytes = 0;
};

/// What a plan is made for.
struct split_device {
  int multiprocessors = 1;
  bool warpgroups = false;       // the warpgroup kernel was built for it and runs there: Hopper alone
  bool clusters = false;         // it has thread block clusters
  int block_bytes = 227 * 1024;  // of shared memory that it lends a block
  int multiprocessor_bytes = 228 * 1024;  // that a multiprocessor has

  static split_device of(device where);
};

split_plan plan_split(const split_device& on, const paged_attention_params& p, const split_options& options);

/// How the copy engine finds a box of a tensor; what the driver calls a CUtensorMap.
struct alignas(128) tensor_map {
  std::uint64_t words[16];
};

/// The kernel's argument.
struct split_params {
  paged_attention_params op;
  std::int32_t capacity;  // cached tokens that the page table has room for
  float* partials;        // after the counters
  std::int32_t* counters;
  std::int32_t cluster;       // block groups whose blocks for a KV head are a cluster
  std::int32_t block_groups;  // the grid is [kv_heads, block_groups]
  std::int32_t group;         // query heads of a KV head
  divisor by_group, by_block_groups;
  std::int32_t min_tiles;
  std::int32_t switch_tiles;
  std::int32_t long_share;
  std::int32_t table_columns;  // of each row's page list that may be asked for early
  std::int32_t table_shift;    // log2 of a row's lines of the cache that are
  std::int32_t partials_by_row;
  std::int32_t max_chunks;
  bool bulk =
      false;  // the pool's keys and values can be had in boxes of min(page size, 64) tokens, 64 elements
  tensor_map keys_map{}, values_map{};

  /// Of a packed query row, among its row's tokens.
  STEPGRAPH_HD std::int32_t token_of(std::int32_t packed) const {
    return static_cast<std::int32_t>(by_group(static_cast<std::uint32_t>(packed)));
  }
};

/// Describes the pool in those boxes; false where the copy engine cannot have it so.
bool map_pages(const paged_attention_params& params, split_params& to);

/// `params` as planned, with its workspace's parts.
split_params planned_params(const paged_attention_params& params, const split_plan& plan);

void split_attention_cuda(stream_ref at, const paged_attention_params& p, const split_options& options);

}  // namespace stepgraph::detail
