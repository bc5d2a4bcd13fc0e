#pragma once

#include <algorithm>

#include "kernels/attention/split_load.cuh"
#include "kernels/attention/split_warp.cuh"
#include "kernels/launch.cuh"

namespace stepgraph::detail {

/// Barrier of the warps that share keys, which are also those that bring them; other warps may be tiles
/// ahead.
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
  attention.store(shared, query_warp, kv_warp, s.lines);
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
    cluster_arrive();
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
  clear_dead_tokens<T, Tile>(p, Tile::threads);
  if (clustered) cluster_wait();
  for_each_segment<Tile>(p, *block, [&](const row_work& work, const segment& s) {
    attend_segment<T, Tile::head_size, Tile>(p, work, s, stages, held, arrivals);
  });
}

/// Raises the kernel's shared memory and launches it.
template <class T, class Tile>
void launch_split_tile(stream_ref at, const split_params& p) {
  const auto kernel = split_attention_kernel<T, Tile>;
  constexpr int bytes = Tile::launch_bytes;
  STEPGRAPH_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch(at, "paged_attention", kernel, dim3(p.op.kv_heads, p.block_groups), dim3(Tile::threads), p, bytes,
         true, dim3(1, p.cluster));
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
