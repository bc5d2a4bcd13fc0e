#include "examples/llama/cluster_attention.hpp"

#include <algorithm>
#include <cstddef>

#include "examples/llama/cluster_long_rows.cuh"
#include "graphs/cuda_check.hpp"
#include "graphs/error.hpp"

namespace stepgraph::llama {

namespace detail {
template <int HeadSize, int QueryTiles>
void launch_tiles(stream_ref at, const cluster_params& p, int cluster);
}

namespace {

using detail::max_cluster;

// of shared memory, so that a multiprocessor holds two blocks, no third, and has room for the products' beside them
constexpr int two_blocks_bytes = 75000;

/// Of one launch.
int most_blocks(int multiprocessors) {
  return 2 * multiprocessors;
}

int query_tiles(const paged_attention_params& p, int row_tokens) {
  return (row_tokens * (p.heads / std::max(p.kv_heads, 1)) + 15) / 16;
}

/// Blocks that share a row's KV head: as many as keep the GPU's multiprocessors at one or two each.
int cluster_of(int multiprocessors, const paged_attention_params& p) {
  const int units = p.rows * p.kv_heads;
  int cluster = max_cluster;
  while (cluster > 1 && units * cluster > most_blocks(multiprocessors)) cluster /= 2;
  return cluster;
}

/// Whether a third block may come to a multiprocessor. Measured: clusters of eight on more blocks than
/// multiprocessors gain 6 % by it; pairs and single blocks lose as much, being spread unevenly then.
bool packs(int multiprocessors, const paged_attention_params& p, int cluster) {
  return cluster == max_cluster && p.rows * p.kv_heads * cluster > multiprocessors;
}

int attribute(device where, cudaDeviceAttr which) {
  int value = 0;
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&value, which, where.ordinal()));
  return value;
}

}  // namespace

bool has_cluster_attention(device where, const paged_attention_params& p, int row_tokens) {
  if (where.is_host() || p.type != element_type::bf16 || p.head_size != 64 || p.tree_mask ||
      p.logit_cap > 0 || p.window > 0 || p.sink || p.log_sum_exp || query_tiles(p, row_tokens) > 2)
    return false;
  if (attribute(where, cudaDevAttrComputeCapabilityMajor) < 9) return false;
  const int multiprocessors = attribute(where, cudaDevAttrMultiProcessorCount);
  return p.rows * p.kv_heads * cluster_of(multiprocessors, p) <= most_blocks(multiprocessors);
}

std::size_t cluster_attention_workspace_bytes(device where) {
  // a block leaves two partial results of a tile of query rows at most, and what is needed to add them
  constexpr std::size_t partial = 32 * (64 + 4) * sizeof(float);
  const std::size_t blocks = most_blocks(attribute(where, cudaDevAttrMultiProcessorCount));
  return stepgraph::detail::split_counters * sizeof(std::int32_t) + blocks * 2 * partial;
}

void cluster_attention(stream_ref at, const paged_attention_params& p, int row_tokens,
                       const cluster_options& options) {
  STEPGRAPH_EXPECTS(has_cluster_attention(at.where(), p, row_tokens) && p.cu_seqlens_q && p.cache_seqlens,
                    "cluster_attention: a step of ", p.rows, " rows of up to ", row_tokens,
                    " tokens that it does not serve");
  const int multiprocessors = attribute(at.where(), cudaDevAttrMultiProcessorCount),
            cluster = cluster_of(multiprocessors, p), long_tiles = options.long_tiles * cluster;
  const bool room_for_long =
      (p.page_columns << p.page_shift) > std::int64_t{long_tiles} * detail::tile_tokens;
  const int most = most_blocks(multiprocessors),
            blocks = options.blocks > 0 ? std::min(options.blocks, most) : most;
  const std::size_t bytes = cluster_attention_workspace_bytes(at.where());
  STEPGRAPH_EXPECTS(!room_for_long || (p.workspace && p.workspace_bytes >= bytes),
                    "cluster_attention: a workspace of ", bytes, " bytes is needed, got ", p.workspace_bytes);
  const int clusters = room_for_long ? std::max(p.rows, blocks / (p.kv_heads * cluster)) : p.rows;
  const int tiles = query_tiles(p, row_tokens);
  stepgraph::detail::split_plan plan;
  plan.query_warps = tiles;
  plan.block_groups = clusters * cluster;
  plan.min_tiles = 4;
  plan.counters = stepgraph::detail::split_counters;
  const detail::cluster_params params{
      .split = stepgraph::detail::planned_params(p, plan),
      .merge_first = row_tokens > 1,
      .long_tiles = long_tiles,
      .lines = std::min((row_tokens * (p.heads / p.kv_heads) + 3) / 4 * 4, 16 * tiles),
      .least_shared = packs(multiprocessors, p, cluster) ? 0 : two_blocks_bytes};
  tiles <= 1 ? detail::launch_tiles<64, 1>(at, params, cluster)
             : detail::launch_tiles<64, 2>(at, params, cluster);
}

}  // namespace stepgraph::llama
