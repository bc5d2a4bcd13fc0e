#pragma once

#include <algorithm>
#include <cstdint>

#include "examples/llama/cluster_attention.hpp"
#include "examples/llama/cluster_long_rows.cuh"
#include "examples/llama/cluster_merge.cuh"
#include "examples/llama/successor.cuh"
#include "kernels/cluster.cuh"
#include "kernels/launch.cuh"

namespace stepgraph::llama::detail {

using stepgraph::detail::cluster_arrive;
using stepgraph::detail::cluster_arrive_relaxed;
using stepgraph::detail::cluster_wait;

/// Of a launch whose rows have up to `lines` lines.
template <int HeadSize, int Cluster, bool MergeFirst>
constexpr int shared_bytes(int lines) {
  constexpr int sources = cluster_warps * (MergeFirst ? 1 : Cluster), columns = HeadSize / Cluster;
  const int ring = stages<HeadSize> * 2 * tile_tokens * HeadSize * 2,  // keys and values
      first = MergeFirst ? parts_pitch<HeadSize, sources> : parts_pitch<columns, sources>,
            second = MergeFirst ? parts_pitch<columns, Cluster> + 2 * softmax_pitch<Cluster> : 0;
  return ring + lines * (first + 2 * softmax_pitch<sources> + second) * 4;
}

__device__ __forceinline__ void store_remote(float* to, int rank, float4 value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; st.shared::cluster.v4.f32 [at], {%2, %3, %4, "
      "%5}; }" ::"r"(shared_address(to)),
      "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
#endif
}

/// Stores into the shared memory of block `rank` of the cluster, where it lies as `to` does here.
__device__ __forceinline__ void store_remote(float2* to, int rank, float2 value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; st.shared::cluster.v2.f32 [at], {%2, %3}; }" ::
          "r"(shared_address(to)),
      "r"(rank), "f"(value.x), "f"(value.y)
      : "memory");
#endif
}

// grid: KV heads, blocks of a cluster times captured rows; where a row may be long, as many more as the GPU
// holds
// the blocks of a cluster take tiles of 64 tokens of a row in turn, for the query heads of one KV head and
// all tokens of the row; each puts its warps' shares together, sends every other its columns of the weighted
// values, and writes its own columns of the output. Where a row is long, all blocks share all rows instead
template <int HeadSize, int QueryTiles, int Cluster, bool MergeFirst>
__global__ void __launch_bounds__(cluster_threads, 3) STEPGRAPH_CLUSTER_Y(Cluster)
    cluster_attention_kernel(const __grid_constant__ cluster_params params) {
  const paged_attention_params& p = params.split.op;
  constexpr int ring_stages = stages<HeadSize>, lines = 16 * QueryTiles;
  constexpr int sources = cluster_warps * (MergeFirst ? 1 : Cluster);  // whose shares come together first
  constexpr int columns = HeadSize / Cluster;                          // of the output that a block writes
  constexpr int part_columns = MergeFirst ? HeadSize : columns;
  using loader_type = tile_loader<HeadSize>;
  extern __shared__ __align__(1024) unsigned char shared[];
  float* const parts = reinterpret_cast<float*>(shared + ring_stages * 2 * loader_type::keys_bytes);
  float2* const softmaxes = reinterpret_cast<float2*>(
      parts + params.lines * parts_pitch<part_columns, sources>);  // [lines, softmax_pitch] largest, sum
  const int warp = threadIdx.x / 32, rank = blockIdx.y % Cluster, row = blockIdx.y / Cluster;
  allow_successor();
  const int longest = longest_row(params.split);
  const row_shape shape = row < p.rows ? shape_of(p, row, blockIdx.x == 0 && rank == 0) : row_shape{};
  if (__any_sync(~0u, tiles_of(longest) > params.long_tiles))
    return attend_shares<HeadSize, QueryTiles>(params.split, shared);
  if (row >= p.rows) return;
  const int tiles = tiles_of(shape.length);
  if (shape.tokens <= 0) return wait_for_predecessor();
  if (Cluster > 1) cluster_arrive_relaxed();
  const int count = rank < tiles ? (tiles - rank + Cluster - 1) / Cluster : 0;
  const loader_type loader(p, row, shape.length, shared_address(shared));
  const int base = max(shape.base(), 0);

  // what earlier steps have written
  std::int32_t next_pages[loader_type::passes];
  const auto tile_of = [&](int i) { return i < count ? rank + i * Cluster : tiles; };
  loader.look_up(tile_of(0), next_pages);
#pragma unroll 1
  for (int i = 0; i < ring_stages; ++i) {
    std::int32_t pages[loader_type::passes];
#pragma unroll
    for (int pass = 0; pass < loader_type::passes; ++pass) pages[pass] = next_pages[pass];
    loader.look_up(tile_of(i + 1), next_pages);
    if (i < count) loader.start(tile_of(i), i, pages, base);
    commit_copies();
  }
  // this step's tokens, as far as they lie in the same tiles
  constexpr int new_passes = lines / loader_type::pass_tokens;
  std::int64_t new_from[new_passes];
  std::uint32_t new_to[new_passes];
#pragma unroll
  for (int pass = 0; pass < new_passes; ++pass) {
    const int position = base + pass * loader_type::pass_tokens + loader.token, tile = position / tile_tokens;
    const int i = tile / Cluster;
    const bool mine = position < shape.length && tile % Cluster == rank && i < ring_stages;
    new_to[pass] = mine ? loader.target(i, position % tile_tokens) : nowhere;
    new_from[pass] = mine ? loader.place(position, __ldcg(loader.table + (position >> p.page_shift))) : -1;
  }
  wait_for_predecessor();
#pragma unroll
  for (int pass = 0; pass < new_passes; ++pass)
    if (new_to[pass] != nowhere) loader.copy(new_to[pass], new_from[pass]);
  commit_copies();

  query_tile<HeadSize> attention[QueryTiles];
#pragma unroll
  for (int q = 0; q < QueryTiles; ++q) attention[q].load(p, shape, q * 16);
  const float scale = p.scale * 1.4426950408889634f;
  int stage = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int tile = rank + i * Cluster;
    if (i < ring_stages && (tile + 1) * tile_tokens > base)
      wait_copies<0>();
    else if (i == 0)
      wait_copies<ring_stages>();
    else if (i < ring_stages)
      wait_copies<ring_stages - 1>();
    else
      wait_copies<ring_stages - 2>();
    __syncthreads();  // all copies of this tile are there, and nobody reads the stage before it any more
    if (i > 0) {
      const int ahead = i - 1 + ring_stages;
      if (ahead < count)
        loader.start(tile_of(ahead), stage == 0 ? ring_stages - 1 : stage - 1, next_pages, shape.length);
      commit_copies();
      loader.look_up(tile_of(ahead + 1), next_pages);
    }
    const std::uint32_t keys =
        loader.ring + stage * 2 * loader_type::keys_bytes + warp * 16 * loader_type::line_bytes;
#pragma unroll
    for (int q = 0; q < QueryTiles; ++q)
      attention[q].attend(keys, keys + loader_type::keys_bytes, tile * tile_tokens + warp * 16, scale);
    stage = stage + 1 == ring_stages ? 0 : stage + 1;
  }
  wait_copies<0>();

  const int live_lines = min(shape.tokens * (p.heads / p.kv_heads), params.lines);
  const auto write = [&](int line, int column, const auto& value, float) {
    store_line<HeadSize>(p, shape, line, rank * columns + column, value);
  };
  if constexpr (MergeFirst) {
    float* const received = reinterpret_cast<float*>(softmaxes + params.lines * softmax_pitch<sources>);
    float2* const sums = reinterpret_cast<float2*>(received + params.lines * parts_pitch<columns, Cluster>);
    for_each_share(
        attention, live_lines,
        [&](int line, int column, float2 value) {
          *reinterpret_cast<float2*>(parts + line * parts_pitch<HeadSize, sources> + warp * HeadSize +
                                     column) = value;
        },
        [&](int line, float2 softmax) { softmaxes[line * softmax_pitch<sources> + warp] = softmax; });
    __syncthreads();
    cluster_wait();
    merge_lines<
        HeadSize,
        sources>(parts, softmaxes, live_lines, [&](int line, int column, const auto& value, float log2_sum) {
      store_remote(received + line * parts_pitch<columns, Cluster> + rank * columns + column % columns,
                   column / columns, float4{value[0], value[1], value[2], value[3]});
      if (column % columns == 0)
        store_remote(sums + line * softmax_pitch<Cluster> + rank, column / columns, float2{log2_sum, 1.0f});
    });
    cluster_arrive();
    cluster_wait();
    merge_lines<columns, Cluster>(received, sums, live_lines, write);
  } else {
    // every block gets its columns of all warps' sums
    if (Cluster > 1) cluster_wait();
    const int source = rank * cluster_warps + warp;
    const auto store = [](float2* at, int to, float2 value) {
      if (Cluster > 1)
        store_remote(at, to, value);
      else
        *at = value;
    };
    for_each_share(
        attention, live_lines,
        [&](int line, int column, float2 value) {
          if (count > 0)
            store(reinterpret_cast<float2*>(parts + line * parts_pitch<columns, sources> + source * columns +
                                            column % columns),
                  column / columns, value);
        },
        [&](int line, float2 softmax) {
          for (int to = threadIdx.x % 4; to < Cluster; to += 4)
            store(softmaxes + line * softmax_pitch<sources> + source, to, softmax);
        });
    if (Cluster > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
    merge_lines<columns, sources>(parts, softmaxes, live_lines, write);
  }
}

template <int HeadSize, int QueryTiles, int Cluster, bool MergeFirst>
void launch_kernel(stream_ref at, const cluster_params& p) {
  const auto kernel = cluster_attention_kernel<HeadSize, QueryTiles, Cluster, MergeFirst>;
  const int bytes = std::max(shared_bytes<HeadSize, Cluster, MergeFirst>(p.lines), p.least_shared);
  STEPGRAPH_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch<cluster_params>(at, "cluster_attention", kernel, dim3(p.split.op.kv_heads, p.split.block_groups),
                         dim3(cluster_threads), p, bytes);
}

template <int HeadSize, int QueryTiles, int Cluster>
void launch_cluster(stream_ref at, const cluster_params& p) {
  // one token's lines are too few for a merge of their own
  if constexpr (Cluster > 1)
    if (QueryTiles > 1 || p.merge_first) return launch_kernel<HeadSize, QueryTiles, Cluster, true>(at, p);
  if constexpr (QueryTiles == 1 || Cluster == 1) launch_kernel<HeadSize, QueryTiles, Cluster, false>(at, p);
}

/// Defined in cluster_attention_<head size>.cu.
template <int HeadSize, int QueryTiles>
void launch_tiles(stream_ref at, const cluster_params& p, int cluster);

#define STEPGRAPH_CLUSTER_ATTENTION(HeadSize, QueryTiles)                                        \
  template <>                                                                                    \
  void launch_tiles<HeadSize, QueryTiles>(stream_ref at, const cluster_params& p, int cluster) { \
    if (cluster == 8) return launch_cluster<HeadSize, QueryTiles, 8>(at, p);                     \
    if (cluster == 4) return launch_cluster<HeadSize, QueryTiles, 4>(at, p);                     \
    if (cluster == 2) return launch_cluster<HeadSize, QueryTiles, 2>(at, p);                     \
    launch_cluster<HeadSize, QueryTiles, 1>(at, p);                                              \
  }

}  // namespace stepgraph::llama::detail
