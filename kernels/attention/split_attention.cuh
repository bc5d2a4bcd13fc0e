#pragma once

#include <algorithm>

#include "kernels/attention/split_load.cuh"
#include "kernels/attention/split_merge.cuh"
#include "kernels/attention/token_view.hpp"
#include "kernels/launch.cuh"

namespace stepgraph::detail {

/// One warp's 16 query rows against the keys of its own: running softmax and weighted values in tensor-core
/// layout. A thread holds rows lane / 4 and lane / 4 + 8.
template <class T, int HeadSize, class Tile>
struct warp_attention {
  static constexpr int steps = HeadSize / 16;
  static constexpr int key_groups = Tile::warp_tokens / 16;
  std::uint32_t query[steps][4];
  float weighted[HeadSize / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};  // base-2 logits over `unit`
  float unit;
  float sum[2] = {0, 0};  // of this thread's columns

  __device__ void load_query(const split_params& p, const row_work& work, const segment& s, int query_warp) {
    const int lane = threadIdx.x % 32, group = p.group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = query_warp * 16 + half * 8 + lane / 4;
      const bool there = line < s.lines;
      const int packed = s.first_line + (there ? line : 0), j = packed / group, token = work.first_token + j;
      const T* const from =
          static_cast<const T*>(p.op.query) +
          (std::int64_t{token} * p.op.heads + s.kv_head * group + packed % group) * HeadSize + lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        query[step][half] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16) : 0;
        query[step][half + 2] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16 + 8) : 0;
      }
    }
  }

  /// scores = query . keys of this warp's tokens in the stage.
  __device__ void score(std::uint32_t keys, int first_key, float (&scores)[Tile::warp_tokens / 8][4]) const {
    const int lane = threadIdx.x % 32;
    const std::uint32_t line = keys + (first_key + lane / 16 * 8 + lane % 8) * Tile::line_bytes;
#pragma unroll
    for (auto& each : scores)
#pragma unroll
      for (float& value : each) value = 0;
#pragma unroll
    for (int step = 0; step < steps; ++step)
#pragma unroll
      for (int g = 0; g < key_groups; ++g) {
        std::uint32_t b[4];
        load_matrices(b, line + g * 16 * Tile::line_bytes + swizzle(step * 2 + lane / 8 % 2, lane) * 16);
        multiply_add<T>(scores[2 * g], query[step], b[0], b[1]);
        multiply_add<T>(scores[2 * g + 1], query[step], b[2], b[3]);
      }
  }

  /// Hides what these rows do not see. `position` is that of this warp's first key, `live` its tokens that are there,
  /// `first_column` this thread's first among them. note: few tiles need it, so nothing is kept for it
  __device__ static void mask(const split_params& p, const row_work& work, const segment& s, int query_warp,
                              float (&scores)[Tile::warp_tokens / 8][4], int position, std::uint64_t live,
                              int first_column) {
    std::uint64_t seen[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = query_warp * 16 + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
      const int j = (s.first_line + (line < s.lines ? line : 0)) / p.group;
      const token_view view = token_view::make(
          work.base(), j, p.op.window, p.op.tree_mask ? p.op.tree_mask + work.first_token + j : nullptr);
      seen[half] = (view.sees_64(position) & live) >> first_column;
    }
#pragma unroll
    for (int n = 0; n < Tile::warp_tokens / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!(seen[e / 2] >> (n * 8 + e % 2) & 1)) scores[n][e] = -INFINITY;
  }

  __device__ void softmax(float (&scores)[Tile::warp_tokens / 8][4]) {
    float now[2] = {largest[0], largest[1]}, factor[2];
#pragma unroll
    for (int n = 0; n < Tile::warp_tokens / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) now[e / 2] = fmaxf(now[e / 2], scores[n][e]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 1));
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 2));
      const float from = now[half] == -INFINITY ? 0.0f : now[half];
      factor[half] = exp2_fast((largest[half] - from) * unit);
      largest[half] = now[half];
      now[half] = -from * unit;
    }
    if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (auto& each : weighted)
#pragma unroll
        for (int e = 0; e < 4; ++e) each[e] *= factor[e / 2];
      sum[0] *= factor[0];
      sum[1] *= factor[1];
    }
#pragma unroll
    for (int n = 0; n < Tile::warp_tokens / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = exp2_fast(fmaf(scores[n][e], unit, now[e / 2]));
        sum[e / 2] += scores[n][e];
      }
  }

  /// weighted += weights . values of this warp's tokens in the stage.
  __device__ void weigh(std::uint32_t values, int first_key,
                        const float (&weights)[Tile::warp_tokens / 8][4]) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t line = values + (first_key + lane / 8 % 2 * 8 + lane % 8) * Tile::line_bytes;
#pragma unroll
    for (int g = 0; g < key_groups; ++g) {
      const std::uint32_t a[4] = {pack<T>(weights[2 * g][0], weights[2 * g][1]),
                                  pack<T>(weights[2 * g][2], weights[2 * g][3]),
                                  pack<T>(weights[2 * g + 1][0], weights[2 * g + 1][1]),
                                  pack<T>(weights[2 * g + 1][2], weights[2 * g + 1][3])};
#pragma unroll
      for (int n = 0; n < HeadSize / 16; ++n) {
        std::uint32_t b[4];
        load_matrices_transposed(b, line + g * 16 * Tile::line_bytes + swizzle(n * 2 + lane / 16, lane) * 16);
        multiply_add<T>(weighted[2 * n], a, b[0], b[1]);
        multiply_add<T>(weighted[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  /// Leaves the warp's rows for `finish_segment`.
  __device__ void store(float* shared, int query_warp, int kv_warp) {
    const int lane = threadIdx.x % 32;
    constexpr int rows = Tile::kv_warps * Tile::query_rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
      const int at = kv_warp * Tile::query_rows + query_warp * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < HeadSize / 8; ++n)
        *reinterpret_cast<float2*>(shared + at * Tile::output_pitch + n * 8 + lane % 4 * 2) =
            make_float2(weighted[n][2 * half], weighted[n][2 * half + 1]);
      if (lane % 4 == 0) {
        shared[rows * Tile::output_pitch + at] = largest[half] * unit;
        shared[rows * Tile::output_pitch + rows + at] = sum[half];
      }
    }
  }
};

/// Barrier of the warps that share keys, which are also those that bring them; other warps may be tiles ahead.
template <class Tile>
__device__ __forceinline__ void meet_group(int group) {
  static_assert(Tile::group_warps == 1 || Tile::kv_warps <= 2);
  if constexpr (Tile::group_warps == 1)
    __syncwarp();
  else if constexpr (Tile::group_warps == Tile::warps)
    __syncthreads();
  else if (group == 0)
    asm volatile("bar.sync 1, %0;" ::"n"(32 * Tile::group_warps) : "memory");
  else
    asm volatile("bar.sync 2, %0;" ::"n"(32 * Tile::group_warps) : "memory");
}

/// One block's work on a segment: a pipeline of KV tiles through shared memory, each multiplied by all
/// queries.
template <class T, int HeadSize, class Tile>
__device__ void attend_segment(const split_params& p, const row_work& work, const segment& s,
                               unsigned char* stages, held_pages<Tile>& held, int& shared_arrivals) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int query_warp = warp % (Tile::warps / Tile::kv_warps),
            kv_warp = warp / (Tile::warps / Tile::kv_warps);
  const segment_span span = span_of<Tile>(p, work, s);
  const int first_tile = span.first_tile, last_tile = span.last_tile;

  const kv_loader<T, HeadSize, Tile> loader(p, work, s, span, shared_address(stages), held);
  loader.look_up_first(first_tile);
  // note: before the copies, which would delay it
  warp_attention<T, HeadSize, Tile> attention;
  attention.load_query(p, work, s, query_warp);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < Tile::stages; ++i) {
    if (first_tile + i < last_tile) loader.start(first_tile + i, i);
    if (i > 0) loader.start_look_up(first_tile + i + Tile::stages - 1);
    commit_copies();
  }
  const bool has_queries = query_warp * 16 < s.lines;
  const bool plain = p.op.scale > 0 && !(p.op.logit_cap > 0);  // what the scores' order is, the logits' is
  attention.unit = plain ? p.op.scale * log2_e : log2_e;
  int stage = 0;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    if (tile == first_tile)
      wait_copies<Tile::stages - 1>();
    else
      wait_copies<Tile::stages - 2>();
    meet_group<Tile>(
        kv_warp);  // its keys of this tile are there, and none of it reads the stage before any more
    if (tile > first_tile) {
      const int ahead = tile + Tile::stages - 1, ahead_stage = stage == 0 ? Tile::stages - 1 : stage - 1;
      if (ahead < last_tile) loader.start(ahead, ahead_stage);
      loader.start_look_up(ahead + Tile::stages - 1);
      commit_copies();
    }
    if (has_queries) {
      const std::uint32_t keys = shared_address(stages) + stage * Tile::stage_bytes;
      const int first_key = kv_warp * Tile::warp_tokens;
      const int position = tile * Tile::kv_tokens + first_key;
      // note: read before the products, which hide it
      const auto there = Tile::guarded ? held.live_of(stage, kv_warp) : held_pages<Tile>::all_live;
      float scores[Tile::warp_tokens / 8][4];
      attention.score(keys, first_key, scores);
      if (!plain) {
        const bool capped = p.op.logit_cap > 0;
        const float inner = capped ? __fdividef(p.op.scale, p.op.logit_cap) : p.op.scale;
#pragma unroll
        for (auto& each : scores)
#pragma unroll
          for (float& value : each)
            value = capped ? p.op.logit_cap * tanh_fast(inner * value) : inner * value;
      }
      if (there != held_pages<Tile>::all_live || position < span.all_begin ||
          position + Tile::warp_tokens > span.all_end)
        attention.mask(p, work, s, query_warp, scores, position, there, lane % 4 * 2);
      attention.softmax(scores);
      attention.weigh(keys + Tile::keys_bytes, first_key, scores);
    }
    stage = stage == Tile::stages - 1 ? 0 : stage + 1;
  }
  wait_copies<0>();
  __syncthreads();
  float* const shared = reinterpret_cast<float*>(stages);
  attention.store(shared, query_warp, kv_warp);
  __syncthreads();
  finish_segment<T, HeadSize, Tile>(p, work, s, shared, reinterpret_cast<float*>(stages + Tile::shared_bytes),
                                    held.received, shared_arrivals);
  __syncthreads();  // before the next segment's copies
}

// grid: what the GPU holds at once, whatever the batch and the captured width
// a block takes an even share of all rows' live KV tiles, one segment of a (row, query tile, KV head) after
// another
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::occupancy)
    split_attention_kernel(const __grid_constant__ split_params p) {
  extern __shared__ __align__(1024) unsigned char stages[];
  __shared__ held_pages<Tile> held;
  __shared__ int arrivals;
  const bool clustered = Tile::clusters && p.cluster > 1;
  if (clustered) {
    if (threadIdx.x == 0) init_received(shared_address(&held.received));
    greet_cluster();
  }
  prefetch_plan(p);
  wait_for_predecessor();

  const block_work planned = plan_block<Tile>(p);
  const block_work* block = &planned;
  if constexpr (split_few_registers) {
    __shared__ block_work shared_block;
    if (threadIdx.x == 0) shared_block = planned;
    __syncthreads();
    block = &shared_block;
  }
  if (clustered) meet_cluster();
  for_each_segment<Tile>(p, *block, [&](const row_work& work, const segment& s) {
    attend_segment<T, Tile::head_size, Tile>(p, work, s, stages, held, arrivals);
  });
  clear_dead_tokens<T, Tile>(p, Tile::threads);
}

/// As `launch`, with `p.cluster` blocks along y a cluster.
inline void launch_clusters(stream_ref at, void (*kernel)(const split_params), dim3 grid, dim3 block,
                            const split_params& p, std::size_t shared_bytes) {
  require_in_capture(at, "paged_attention");
  note_kernel("paged_attention", reinterpret_cast<const void*>(kernel));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = 1;
  attributes[1].val.clusterDim.y = p.cluster;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(at.native());
  config.attrs = attributes;
  config.numAttrs = p.cluster > 1 ? 2 : 1;
  if (const cudaError_t status = cudaLaunchKernelEx(&config, kernel, p); status != cudaSuccess)
    cuda::throw_status(status, "paged_attention", source_place::current());
}

/// Raises the kernel's shared memory and launches it.
template <class T, class Tile>
void launch_split_tile(stream_ref at, const split_params& p) {
  const auto kernel = split_attention_kernel<T, Tile>;
  constexpr int bytes = Tile::launch_bytes;
  STEPGRAPH_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_clusters(at, kernel, dim3(p.op.kv_heads, p.block_groups), dim3(Tile::threads), p, bytes);
}

/// Defined in split_attention_<type>_<head size>.cu, one file an instantiation.
template <class T, int HeadSize>
void launch_split(stream_ref at, const split_params& p, int query_warps, int warps);

#define STEPGRAPH_SPLIT_ATTENTION(T, HeadSize)                                                       \
  template <>                                                                                        \
  void launch_split<T, HeadSize>(stream_ref at, const split_params& p, int query_warps, int warps) { \
    if (warps == 8) return launch_split_tile<T, split_tile<HeadSize, 1, 8>>(at, p);                  \
    if (query_warps == 1) return launch_split_tile<T, split_tile<HeadSize, 1, 4>>(at, p);            \
    if (query_warps == 2) return launch_split_tile<T, split_tile<HeadSize, 2, 4>>(at, p);            \
    return launch_split_tile<T, split_tile<HeadSize, 4, 4>>(at, p);                                  \
  }

}  // namespace stepgraph::detail
