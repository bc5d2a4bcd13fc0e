#include "examples/llama/cluster_attention.hpp"

#include <algorithm>

#include "examples/llama/cluster_load.cuh"
#include "graphs/cuda_check.hpp"
#include "graphs/error.hpp"

namespace stepgraph::llama {

namespace detail {
template <int HeadSize, int QueryTiles>
void launch_tiles(stream_ref at, const paged_attention_params& p, int cluster);
}

namespace {

using detail::max_cluster;

int query_tiles(const paged_attention_params& p, int row_tokens) {
  return (row_tokens * (p.heads / std::max(p.kv_heads, 1)) + 15) / 16;
}

/// Blocks that share a row's KV head: as many as keep the GPU's multiprocessors at one or two each.
int cluster_of(int multiprocessors, const paged_attention_params& p) {
  const int units = p.rows * p.kv_heads;
  int cluster = max_cluster;
  while (cluster > 1 && units * cluster > 2 * multiprocessors) cluster /= 2;
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
  // note: a row's tiles are not shared further, so many long rows of different lengths are split_attention's
  return p.rows * p.kv_heads * cluster <= 2 * multiprocessors &&
         (cluster == max_cluster || (p.page_columns << p.page_shift) <= std::int64_t{2048} * cluster);
}

void cluster_attention(stream_ref at, const paged_attention_params& p, int row_tokens) {
  STEPGRAPH_EXPECTS(has_cluster_attention(at.where(), p, row_tokens) && p.cu_seqlens_q && p.cache_seqlens,
                    "cluster_attention: a step of ", p.rows, " rows of up to ", row_tokens,
                    " tokens that it does not serve");
  const int cluster = cluster_of(attribute(at.where(), cudaDevAttrMultiProcessorCount), p);
  query_tiles(p, row_tokens) <= 1 ? detail::launch_tiles<64, 1>(at, p, cluster)
                                  : detail::launch_tiles<64, 2>(at, p, cluster);
}

}  // namespace stepgraph::llama
