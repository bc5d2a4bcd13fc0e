#pragma once

#include <algorithm>

#include "kernels/attention/split_load.cuh"
#include "kernels/attention/split_warp.cuh"
#include "kernels/launch.cuh"
#include "kernels/settled.hpp"

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
/// queries. `met`: the cluster's other block is known to be there.
template <class T, int HeadSize, class Tile>
__device__ void attend_segment(const split_params& p, const block_work& block, const row_work& planned_work,
                               segment& planned, unsigned char* stages, held_pages<Tile>& held,
                               int& shared_arrivals, bool& met) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int query_warp = warp % (Tile::warps / Tile::kv_warps),
            kv_warp = warp / (Tile::warps / Tile::kv_warps);
  segment_span span = span_of<Tile>(p, planned_work, planned);
  const int first_tile = span.first_tile, last_tile = span.last_tile;
  // note: not to be read before the first barrier
  const row_work& work = Tile::segment_shared ? held.work : planned_work;
  const segment& s = Tile::segment_shared ? held.s : planned;
  if constexpr (Tile::segment_shared) place_parts<Tile>(p, block, planned);
  // who brings the step's own keys reads the segment there
  const bool told = Tile::segment_shared || p.op.step_kv.keys;
  if (told && threadIdx.x == 0) {
    held.work = planned_work;
    held.s = planned;
  }

  kv_loader<T, HeadSize, Tile> loader(p, planned_work, planned, span, shared_address(stages), held);
  const bool has_queries = query_warp * 16 < planned.lines;
  const bool plain = p.op.scale > 0 && !(p.op.logit_cap > 0);  // what the scores' order is, the logits' is
  // once, or with an entry that is no page twice: the second time with words that say which tokens are there,
  // which no other segment needs
#pragma unroll 1
  while (true) {
    std::int32_t entries[loader.first_rounds];
    loader.ask_first(first_tile, entries);
    // note: before the copies, which would delay it
    warp_attention<T, HeadSize, Tile> attention;
    attention.load_query(p, planned_work, planned, query_warp);
    loader.keep_first(first_tile, entries);
    if (told)
      __syncthreads();
    else
      __syncwarp();
    constexpr int ahead =
        Tile::refills_at_once ? Tile::stages : Tile::stages - 1;  // tiles under way while one is read
    const auto refill = [&](int tile, int stage) {
      if (tile < last_tile) loader.start(tile, stage);
      loader.start_look_up(tile + ahead);
      commit_copies();
    };
#pragma unroll 1
    for (int i = 0; i < Tile::stages; ++i) {
      if (first_tile + i < last_tile) loader.start(first_tile + i, i);
      if (Tile::refills_at_once || i > 0) loader.start_look_up(first_tile + i + ahead);
      commit_copies();
    }
    if constexpr (!Tile::segment_shared) place_parts<Tile>(p, block, planned);
    attention.lane =
        Tile::segment_shared ? threadIdx.x % 32 : settled(static_cast<std::int32_t>(threadIdx.x % 32));
    attention.unit = plain ? p.op.scale * log2_e : log2_e;
    int stage = 0;
    for (int tile = first_tile; tile < last_tile; ++tile) {
      if (Tile::refills_at_once || tile == first_tile)
        wait_copies<Tile::stages - 1>();
      else
        wait_copies<Tile::stages - 2>();
      meet_group<Tile>(
          kv_warp);  // its keys of this tile are there, and none of it reads the stage before any more
      if (!Tile::refills_at_once && tile > first_tile)
        refill(tile + ahead, stage == 0 ? Tile::stages - 1 : stage - 1);
      if (has_queries) {
        const std::uint32_t keys = shared_address(stages) + stage * Tile::stage_bytes;
        const int first_key = kv_warp * Tile::warp_tokens;
        const int position = tile * Tile::kv_tokens + first_key;
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
        if (position < span.all_begin || position + Tile::warp_tokens > span.all_end) {
          const auto there =
              Tile::guarded && loader.careful ? held.live_of(stage, kv_warp) : held_pages<Tile>::all_live;
          attention.mask(p, work, s, query_warp, scores, position, there, lane % 4 * 2);
        }
        attention.softmax(scores);
        attention.weigh(keys + Tile::keys_bytes, first_key, scores);
      }
      if constexpr (Tile::refills_at_once) {
        meet_group<Tile>(kv_warp);  // none of it reads the stage any more
        refill(tile + ahead, stage);
      }
      stage = stage == Tile::stages - 1 ? 0 : stage + 1;
    }
    wait_copies<0>();
    const bool bad = __syncthreads_or(Tile::guarded && loader.bad != 0);
    attention.store(reinterpret_cast<float*>(stages), query_warp, kv_warp, s.lines);
    __syncthreads();
    if (!Tile::guarded || !bad || loader.careful) break;
    if (loader.bad != 0) report_fault(p, s.row, row_status::slot_out_of_range, loader.bad);
    loader.careful = true;
    span = span.masked();
  }
  if (Tile::clusters && !met) {
    cluster_wait();
    met = true;
  }
  finish_segment<T, HeadSize, Tile>(p, work, s, reinterpret_cast<float*>(stages),
                                    reinterpret_cast<float*>(stages + Tile::shared_bytes), held.received,
                                    shared_arrivals);
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
  static_assert(Tile::launch_bytes + sizeof held + sizeof arrivals +
                    (Tile::plan_shared ? sizeof(block_work) : 0) <=
                Tile::block_bytes);
  const bool clustered = Tile::clusters && p.cluster > 1;
  if (clustered) {
    if (threadIdx.x == 0) init_received(shared_address(&held.received));
    cluster_arrive_relaxed();
  }
  prefetch_plan(p);
  wait_for_predecessor();

  const block_work planned = plan_block<Tile>(p);
  const block_work* block = &planned;
  if constexpr (Tile::plan_shared) {
    __shared__ block_work shared_block;
    if (threadIdx.x == 0) shared_block = planned;
    __syncthreads();
    block = &shared_block;
  }
  // note: asked for now and looked at in the end, so that no key waits for it
  const int live_end = Tile::guarded ? p.op.cu_seqlens_q[p.op.rows] : 0;
  bool met = !clustered;
  for_each_segment<Tile>(p, *block, [&](const row_work& work, segment& s) {
    attend_segment<T, Tile::head_size, Tile>(p, *block, work, s, stages, held, arrivals, met);
  });
  if (!met) cluster_wait();
  clear_dead_tokens<T, Tile>(p, live_end, Tile::threads);
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
