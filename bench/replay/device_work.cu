#include <algorithm>

#include "bench/attention_kernels.hpp"
#include "bench/guard_comparators.hpp"
#include "bench/replay/device_work.hpp"
#include "kernels/launch.cuh"

namespace stepgraph::bench {
namespace {

// grid: (chunks of the captured width, heads, rows)
// every block finds its chunk beyond its row's length; the live ones are another kernel's work
__global__ void __launch_bounds__(128) dead_blocks_kernel(const __grid_constant__ dead_blocks_params p) {
  const std::int32_t length = p.cache_seqlens[blockIdx.z];
  if (std::int64_t{blockIdx.x} * p.chunk < length) return;
  if (length < 0) __trap();  // never: keeps the load
}

// grid: (parts of the top-k, tokens)
// a warp reads a slot's line at a time, four under way
__global__ void __launch_bounds__(256) gather_attention_kernel(const __grid_constant__ gather_params p) {
  wait_for_predecessor();
  const int warps = gridDim.x * 8,
            warp = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32,
            lane = threadIdx.x % 32, vectors = p.line_bytes / 16;
  const std::int32_t* const slots = p.slots + std::int64_t{blockIdx.y} * p.topk;
  const auto* const cache = static_cast<const uint4*>(p.cache);
  std::uint32_t all = 0;
  for (int i = warp; i < p.topk; i += warps) {
    const std::int32_t slot = slots[i];
    if (slot < 0) continue;
#pragma unroll 4
    for (int v = lane; v < vectors; v += 32) {
      const uint4 part = cache[std::int64_t{slot} * vectors + v];
      all ^= part.x ^ part.y ^ part.z ^ part.w;
    }
  }
  if (all == 0x12345678u) *p.sink = all;
}

}  // namespace

void cuda_work::fill(stream_ref at, void* to, std::int64_t count, std::uint32_t seed) {
  fill_random(at, to, count, seed);
}

void cuda_work::read(stream_ref at, const void* from, std::int64_t bytes, std::uint32_t* sink) {
  const std::int64_t half = bytes / 32 * 16;
  read_plainly(at, from, static_cast<const std::byte*>(from) + half, half, sink);
}

void cuda_work::copy(stream_ref at, void* to, const void* from, std::int64_t bytes) {
  plain_copy(at, to, from, bytes);
}

void cuda_work::dead_blocks(stream_ref at, const dead_blocks_params& params) {
  const auto chunks = static_cast<unsigned>((params.width + params.chunk - 1) / params.chunk);
  launch(at, "dead_blocks", dead_blocks_kernel, dim3(chunks, params.heads, params.rows), dim3(128), params, 0,
         false);
}

void cuda_work::gather(stream_ref at, const gather_params& params) {
  const int room = 4 * at.where().multiprocessors() / params.tokens;
  const int parts = std::max(1, std::min((params.topk + 7) / 8, room));
  launch(at, "gather_attention_stand_in", gather_attention_kernel,
         dim3(static_cast<unsigned>(parts), static_cast<unsigned>(params.tokens)), dim3(256), params);
}

}  // namespace stepgraph::bench
