#include "examples/llama/cluster_attention.hpp"

#include <algorithm>
#include <cstddef>

#include "examples/llama/cluster_long_rows.cuh"
#include "graphs/cuda_check.hpp"
#include "graphs/error.hpp"

namespace stepgraph::llama {

namespace detail {
template <int HeadSize, int QueryTiles>
void launch_tiles(stream_ref at, const cluster_params& p, int cluster, int grid_rows);
}

namespace {

using detail::max_cluster;

constexpr std::size_t counters_bytes = 65536;  // of the workspace, as split attention has them

constexpr std::int64_t lone_block_tokens = 2048;  // of a row, where it has one block a KV head

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
  const int cluster = cluster_of(multiprocessors, p);
  // note: single blocks are no match for split attention on long rows, theirs or everybody's
  return p.rows <= detail::cluster_rows && p.rows * p.kv_heads * cluster <= most_blocks(multiprocessors) &&
         (cluster > 1 || (p.page_columns << p.page_shift) <= lone_block_tokens);
}

std::size_t cluster_attention_workspace_bytes(device where) {
  const std::size_t blocks = most_blocks(attribute(where, cudaDevAttrMultiProcessorCount));
  return counters_bytes + blocks * 2 * detail::partial_floats<64, 2> * sizeof(float);
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
  const int most_rows = most_blocks(multiprocessors) / (p.kv_heads * cluster),
            blocks = options.blocks > 0 ? options.blocks : most_blocks(multiprocessors);
  const std::size_t bytes = cluster_attention_workspace_bytes(at.where());
  STEPGRAPH_EXPECTS(!room_for_long || (p.workspace && p.workspace_bytes >= bytes),
                    "cluster_attention: a workspace of ", bytes, " bytes is needed, got ", p.workspace_bytes);
  const int grid_rows =
      room_for_long ? std::max(p.rows, std::min(blocks / (p.kv_heads * cluster), most_rows)) : p.rows;
  auto* const workspace = static_cast<std::byte*>(p.workspace);
  const detail::cluster_params params{.op = p,
                                      .merge_first = row_tokens > 1,
                                      .long_tiles = long_tiles,
                                      .partials = reinterpret_cast<float*>(workspace + counters_bytes),
                                      .counters = reinterpret_cast<std::int32_t*>(workspace)};
  query_tiles(p, row_tokens) <= 1 ? detail::launch_tiles<64, 1>(at, params, cluster, grid_rows)
                                  : detail::launch_tiles<64, 2>(at, params, cluster, grid_rows);
}

}  // namespace stepgraph::llama
