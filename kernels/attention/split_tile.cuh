#pragma once

#include <cstdint>

#include "kernels/attention/split_attention.hpp"

namespace stepgraph::detail {

// note: elsewhere than on sm_90 the compiler needs more registers for the same code, and would spill
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr bool split_few_registers = true;
#else
constexpr bool split_few_registers = false;
#endif

/// Constants of one instantiation. `QueryWarps` warps lie along the packed query rows, 16 rows each; the
/// others share the tile's keys between them, each with a softmax of its own until the end. Not `Guarded`:
/// takes all lengths and page entries as they are, and all of every tile as there; to measure what the guard
/// costs.
template <int HeadSize, int QueryWarps, int Warps, bool Guarded = true>
struct split_tile {
  static constexpr int head_size = HeadSize;
  static constexpr bool guarded = Guarded;
  static constexpr int warps = Warps;
  static constexpr int threads = 32 * Warps;
  static constexpr int occupancy = split_occupancy(HeadSize, QueryWarps, Warps);
  static constexpr int overhead = 0;  // KV tiles that a query tile costs beside its own
  static constexpr int query_rows = 16 * QueryWarps;
  static constexpr int kv_tokens = 16 * Warps;  // keys and values of one pipeline stage
  // a row's only query tile reads its keys and values once: they need not push lengths, page tables and code
  // out of the cache
  static constexpr bool read_once = QueryWarps < 4 && !split_few_registers;
  // the segment at hand lies in shared memory rather than in registers
  static constexpr bool segment_shared = QueryWarps > 1 || (split_few_registers && Warps == 8);
  static constexpr bool plan_shared = split_few_registers || QueryWarps > 1;  // rather than in registers
  static constexpr bool trees = true;
  static constexpr bool invariant = QueryWarps == split_invariant_warps;  // batch-invariant splits, too
  static constexpr bool counts_switches = QueryWarps == 1 && Warps == 4;  // `switch_tiles` are looked at
  static constexpr bool rare_apart = true;  // what few rows need is kept out of the straight code
  static constexpr int kv_warps = Warps / QueryWarps;
  static constexpr int group_warps = QueryWarps;            // warps that have the same keys
  static constexpr int warp_tokens = kv_tokens / kv_warps;  // keys of a tile that one warp sees
  static constexpr int stages = split_stages(HeadSize);
  // a stage is refilled as soon as it is read, or once the next one is there: faster for a block alone on its
  // multiprocessor, slower for two
  static constexpr bool refills_at_once = Warps == 8;
  static constexpr int line_bytes = HeadSize * 2;        // one key or value of one head
  static constexpr int line_vectors = HeadSize / 8;      // 16-byte pieces of it, one a thread
  static constexpr int pass_tokens = 32 / line_vectors;  // of a warp's 16
  static constexpr int passes = 16 / pass_tokens;
  static constexpr int keys_bytes = kv_tokens * line_bytes;
  static constexpr int stage_bytes = 2 * keys_bytes;  // keys, then values
  // note: lines of the warps' outputs are 8 floats longer, which spreads a warp's stores over all banks
  static constexpr int output_pitch = HeadSize + 8;
  static constexpr int shared_bytes = stages * stage_bytes;
  static constexpr int slot_line = HeadSize + 4;  // floats of a partial result a query row
  // two blocks of eight warps may be a cluster, whose first one takes the other's part of a unit
  static constexpr bool clusters = Warps == 8;
  static constexpr int block_bytes = split_block_bytes(HeadSize, Warps);
  static constexpr int launch_bytes = split_launch_bytes(HeadSize, Warps);
  static_assert(launch_bytes == shared_bytes + (clusters ? query_rows * slot_line * 4 : 0));
  static_assert(warp_tokens % 16 == 0, "a warp multiplies by 16 keys at a time");
  static_assert(kv_warps * query_rows * (output_pitch + 2) * 4 <= shared_bytes,
                "the warps' outputs take the pipeline's place");
};

/// 16-byte pieces of a line are permuted by the line's number, so that eight lines at one piece lie in
/// different banks.
__device__ __forceinline__ int swizzle(int piece, int line) {
  return piece ^ (line & 7);
}

}  // namespace stepgraph::detail
