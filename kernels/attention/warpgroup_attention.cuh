#pragma once

#include "kernels/attention/warpgroup_multiply.cuh"
#include "kernels/launch.cuh"

namespace stepgraph::detail {

// grid: what the GPU holds at once, whatever the batch and the captured width
// a block takes an even share of all rows' live KV tiles, one segment of a (row, query tile, KV head) after
// another; its first warpgroup loads, the others multiply
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    warpgroup_attention_kernel(const __grid_constant__ split_params p) {
#if STEPGRAPH_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char stages[];
  auto& held = *reinterpret_cast<warpgroup_held<Tile>*>(stages + Tile::held_at);
  const std::uint32_t shared = shared_address(stages);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::key_stages; ++i) {
      init_barrier(shared_address(&held.full_keys[i]), 64 + 2);
      init_barrier(shared_address(&held.empty_keys[i]), 4 * Tile::consumers);
    }
    for (int i = 0; i < Tile::value_stages; ++i) {
      init_barrier(shared_address(&held.full_values[i]), 64);
      init_barrier(shared_address(&held.empty_values[i]), 4 * Tile::consumers);
    }
    for (int i = 0; i < Tile::query_stages; ++i) {
      init_barrier(shared_address(&held.full_query[i]), 64);
      init_barrier(shared_address(&held.empty_query[i]), 4 * Tile::consumers);
    }
    for (int i = 0; i < Tile::orders; ++i) {
      init_barrier(shared_address(&held.full_order[i]), 1);
      init_barrier(shared_address(&held.empty_order[i]), 128 * Tile::consumers);
    }
    init_barrier(shared_address(&held.brought), 128);
  }
  __syncthreads();
  wait_for_predecessor();
  if (threadIdx.x < 128) {
    {
      const block_work block = plan_block<Tile>(p);
      if (threadIdx.x == 0) held.block = block;
    }
    give_registers<Tile::loader_registers>();
    asm volatile("bar.sync 2, 128;" ::: "memory");
    warpgroup_loader<T, Tile::head_size, Tile> loader{p, held, shared, {}, {}};
    if (threadIdx.x < 64)
      loader.template run<true>(held.block);
    else
      loader.template run<false>(held.block);
    clear_dead_tokens<T, Tile>(p, p.op.cu_seqlens_q[p.op.rows], 128);
  } else {
    take_registers<Tile::consumer_registers>();
    warpgroup_attention<T, Tile::head_size, Tile> attention{
        {p, held, static_cast<int>(threadIdx.x) / 128 - 1, p.op.logit_cap > 0 ? log2_e : p.op.scale * log2_e},
        shared};
    attention.run();
  }
#endif
}

template <class T, class Tile>
void launch_warpgroup_tile(stream_ref at, const split_params& p) {
  const auto kernel = warpgroup_attention_kernel<T, Tile>;
  constexpr int bytes = warpgroup_shared_bytes<Tile>;
  STEPGRAPH_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch<split_params>(at, "paged_attention", kernel, dim3(p.op.kv_heads, p.block_groups),
                       dim3(Tile::threads), p, bytes);
}

/// Defined in warpgroup_attention_<type>_<head size>.cu, one file an instantiation.
template <class T, int HeadSize>
void launch_warpgroup(stream_ref at, const split_params& p);

#define STEPGRAPH_WARPGROUP_ATTENTION(T, HeadSize)                                                    \
  template <>                                                                                         \
  void launch_warpgroup<T, HeadSize>(stream_ref at, const split_params& p) {                          \
    if (p.op.tree_mask) return launch_warpgroup_tile<T, warpgroup_tile<HeadSize, true, true>>(at, p); \
    launch_warpgroup_tile<T, warpgroup_tile<HeadSize>>(at, p);                                        \
  }

}  // namespace stepgraph::detail
