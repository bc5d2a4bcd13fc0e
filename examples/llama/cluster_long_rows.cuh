#pragma once

#include "examples/llama/cluster_load.cuh"
#include "kernels/attention/split_attention.cuh"

/// Steps with a long row: all blocks share all rows' tiles evenly, as split attention does.
namespace stepgraph::llama::detail {

struct cluster_params {
  split_params split;  // the op, and how long rows are shared
  bool merge_first;    // the warps of a block before the blocks of a cluster
  int long_tiles;      // a row of more tiles is long
  int lines;           // of a row and KV head, at most
  int least_shared;    // bytes of shared memory that a block takes, needed or not
};

inline __device__ int tiles_of(int length) {
  return (length + tile_tokens - 1) / tile_tokens;
}

/// The longest of the rows that this lane looks at; all of a warp's lanes look at all rows. Reads what is there
/// before the predecessor ends.
inline __device__ int longest_row(const split_params& params) {
  const paged_attention_params& p = params.op;
  int longest = 0, row = threadIdx.x % 32;
  do {
    // note: loads without a condition, so that they go out together with what else is read
    const int at = min(row, p.rows - 1), begin = __ldcg(p.cu_seqlens_q + at),
              end = __ldcg(p.cu_seqlens_q + at + 1), length = __ldcg(p.cache_seqlens + at);
    longest = max(longest, begin < end ? min(length, params.capacity) : 0);
    row += 32;
  } while (row < p.rows);
  return longest;
}

/// A block's share of all rows.
template <int HeadSize, int QueryTiles>
__device__ __forceinline__ void attend_shares(const split_params& p, unsigned char* shared) {
  using tile = split_tile<HeadSize, QueryTiles, cluster_warps>;
  static_assert(tile::threads == cluster_threads);
  __shared__ held_pages<tile> held;
  __shared__ int arrivals;
  const block_work block = plan_block<tile>(p);
  wait_for_predecessor();
  bool met = true;  // nothing is sent between blocks
  for_each_segment<tile>(p, block, [&](const row_work& work, segment& s) {
    attend_segment<bf16, HeadSize, tile>(p, block, work, s, shared, held, arrivals, met);
  });
}

}  // namespace stepgraph::llama::detail
