#include "examples/llama/ranked_head.hpp"

#include <algorithm>

#include "examples/llama/successor.cuh"
#include "graphs/error.hpp"
#include "kernels/attention/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/sample/ranked_logit.hpp"

namespace stepgraph::llama {
namespace {

using namespace stepgraph::detail;

[[maybe_unused]] constexpr int tile_rows = 128;  // columns of a block's sums
constexpr int chunk = 64;                        // columns of a line of 128 bytes in shared memory
constexpr int chunk_bytes = tile_rows * 128;     // of weights
constexpr int half_tokens = 64;                  // of a multiplying warpgroup
constexpr int loading = 128, threads = loading + 256;
constexpr int most_stages = 8, least_stages = 3, most_chunks = 16;
constexpr int alignment = 1024;

struct ranked_head_params {
  ranked_head head;
  int halves;  // warpgroups that multiply, 1 or 2
  int groups;  // of 64 * halves tokens
  int stages;  // chunks of weights under way
};

#if STEPGRAPH_HAS_WGMMA

/// The larger of two, a NaN if either is one.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

/// The largest of a thread's sums for one of its two tokens.
__device__ __forceinline__ float largest_of(const float (&sums)[tile_rows / 8][4], int line) {
  float most[4];
#pragma unroll
  for (int j = 0; j < tile_rows / 8; ++j) {
    const float pair = larger_or_nan(sums[j][2 * line], sums[j][2 * line + 1]);
    most[j % 4] = j < 4 ? pair : larger_or_nan(most[j % 4], pair);
  }
  return larger_or_nan(larger_or_nan(most[0], most[1]), larger_or_nan(most[2], most[3]));
}

struct ring_stage {
  int number = 0;
  std::uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++number == stages) {
      number = 0;
      parity ^= 1;
    }
  }
};

/// Where a piece of 16 bytes of a line of 128 lies, permuted as the products want it.
__device__ __forceinline__ std::uint32_t place(int line, int piece) {
  return line * 128 + ((piece ^ line) & 7) * 16;
}

#endif

// grid: a block a multiprocessor, blocks of the groups of tokens in turn
// a block keeps its tokens in shared memory and walks over tiles of 128 rows of the weights, which four warps load; one
// or two warpgroups multiply, each for 64 tokens, and raise what is known to be the largest
__global__ void __launch_bounds__(threads, 1)
    ranked_head_kernel(const __grid_constant__ ranked_head_params p) {
#if STEPGRAPH_HAS_WGMMA
  extern __shared__ std::byte dynamic[];
  __shared__ std::uint64_t full[most_stages], empty[most_stages], tokens_there[most_chunks];
  const ranked_head& head = p.head;
  const int chunks = head.columns / chunk, tiles = (head.rows + tile_rows - 1) / tile_rows;
  const int lines = half_tokens * p.halves, first_token = static_cast<int>(blockIdx.x) % p.groups * lines;
  const int first_tile = blockIdx.x / p.groups, step = gridDim.x / p.groups;
  const std::uint32_t x = (shared_address(dynamic) + alignment - 1) & ~(alignment - 1);
  const std::uint32_t ring = x + chunks * lines * 128;
  allow_successor();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < p.stages; ++stage) {
      init_barrier(shared_address(&full[stage]), loading);
      init_barrier(shared_address(&empty[stage]), p.halves);
    }
    for (int c = 0; c < chunks; ++c) init_barrier(shared_address(&tokens_there[c]), loading);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (threadIdx.x < loading) {
    const int piece = threadIdx.x % 8, first_line = threadIdx.x / 8;
    const auto load_tokens = [&] {
      wait_for_predecessor();
      const bf16* from[2 * half_tokens / 16];
#pragma unroll
      for (int i = 0; i < 2 * half_tokens / 16; ++i) {
        const int token = first_token + first_line + 16 * i;
        from[i] = nullptr;
        if (first_line + 16 * i < lines && token < head.tokens)
          from[i] =
              head.x + std::int64_t{head.source ? head.source[token] : token} * head.columns + piece * 8;
      }
      for (int c = 0; c < chunks; ++c) {
#pragma unroll
        for (int i = 0; i < 2 * half_tokens / 16; ++i)
          if (first_line + 16 * i < lines)
            copy_async(x + c * lines * 128 + place(first_line + 16 * i, piece),
                       from[i] ? from[i] + c * chunk : head.x, from[i] != nullptr);
        arrive_after_copies(shared_address(&tokens_there[c]));
      }
    };
    ring_stage stage;
    int loaded = 0;
    for (int tile = first_tile; tile < tiles; tile += step) {
      const bf16* const from =
          head.weight + (std::int64_t{tile} * tile_rows + first_line) * head.columns + piece * 8;
      const int live = head.rows - tile * tile_rows - first_line;
      for (int c = 0; c < chunks; ++c, ++loaded) {
        // as much as there is room for is fetched before the predecessor ends
        if (loaded == p.stages) load_tokens();
        wait_barrier(shared_address(&empty[stage.number]), stage.parity ^ 1);
        const std::uint32_t to = ring + stage.number * chunk_bytes;
#pragma unroll
        for (int i = 0; i < tile_rows / 16; ++i)
          copy_async(to + place(first_line + 16 * i, piece),
                     16 * i < live ? from + std::int64_t{16 * i} * head.columns + c * chunk : head.weight,
                     16 * i < live);
        arrive_after_copies(shared_address(&full[stage.number]));
        stage.advance(p.stages);
      }
    }
    if (loaded <= p.stages) load_tokens();
    // note: what is under way must not outlive the block's barriers
    wait_copies<0>();
    return;
  }

  const int half = (static_cast<int>(threadIdx.x) - loading) / 128, lane = threadIdx.x % 32;
  if (half >= p.halves) return;
  const int token = first_token + half * half_tokens + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const shared_matrix tokens(x + half * half_tokens * 128, 16);
  const int own_row = lane % 4 * 2;
  ring_stage stage;
  wait_for_predecessor();  // the numbers to raise are the predecessors'
  for (int tile = first_tile; tile < tiles; tile += step) {
    // what all blocks have found so far: a tile seldom has more
    std::uint64_t known[2] = {~std::uint64_t{0}, ~std::uint64_t{0}};
#pragma unroll
    for (int line = 0; line < 2; ++line)
      if (head.ranked && token + 8 * line < head.tokens) known[line] = __ldcg(head.ranked + token + 8 * line);
    float sums[tile_rows / 8][4] = {};
    int before = -1;
    for (int c = 0; c < chunks; ++c) {
      if (tile == first_tile) wait_barrier(shared_address(&tokens_there[c]), 0);
      wait_barrier(shared_address(&full[stage.number]), stage.parity);
      fence_for_products();
      const shared_matrix weights(ring + stage.number * chunk_bytes, 16);
      begin_products();
#pragma unroll
      for (int k = 0; k < chunk / 16; ++k)
        warpgroup_product<bf16, tile_rows>::both_shared(sums, tokens.from(c * lines * 128 + k * 32),
                                                        weights.from(k * 32), c > 0 || k > 0);
      commit_products();
      wait_products<1>();
      if (before >= 0 && threadIdx.x % 128 == 0) arrive(shared_address(&empty[before]));
      before = stage.number;
      stage.advance(p.stages);
    }
    wait_products<0>();
    pin(sums);
    if (threadIdx.x % 128 == 0) arrive(shared_address(&empty[before]));
    if (!head.ranked) continue;
    const int first = tile * tile_rows + own_row;
    if (tile == tiles - 1)
#pragma unroll
      for (int j = 0; j < tile_rows / 8; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (first + 8 * j + k % 2 >= head.rows) sums[j][k] = -INFINITY;
#pragma unroll
    for (int line = 0; line < 2; ++line) {
      if (!__any_sync(~0u, ranked_logit(largest_of(sums, line), first) > known[line])) continue;
      std::uint64_t best = 0;
#pragma unroll
      for (int j = 0; j < tile_rows / 8; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k)
          if (const int id = first + 8 * j + k; id < head.rows)
            best = max(best, ranked_logit(sums[j][2 * line + k], id));
      best = max(best, __shfl_xor_sync(~0u, best, 1));
      best = max(best, __shfl_xor_sync(~0u, best, 2));
      if (lane % 4 == 0 && best > known[line])
        atomicMax(reinterpret_cast<unsigned long long*>(head.ranked + token + 8 * line),
                  static_cast<unsigned long long>(best));
    }
  }
#endif
}

ranked_head_params params_of(const ranked_head& head) {
  const int halves = head.tokens > half_tokens ? 2 : 1, lines = half_tokens * halves;
  constexpr int room = 227 * 1024 - alignment - 512;
  return {head, halves, (head.tokens + lines - 1) / lines,
          std::min((room - head.columns / chunk * lines * 128) / chunk_bytes, most_stages)};
}

}  // namespace

bool serves(device where, int columns, int tokens) {
  const ranked_head_params p = params_of({.columns = columns, .tokens = tokens});
  return tokens > 0 && columns % chunk == 0 && columns / chunk <= most_chunks && p.stages >= least_stages &&
         p.groups <= where.multiprocessors() && split_device::of(where).warpgroups;
}

void multiply(stream_ref at, const ranked_head& head) {
  STEPGRAPH_EXPECTS(head.rows > 0 && serves(at.where(), head.columns, head.tokens),
                    "ranked_head: ", head.tokens, " tokens of ", head.columns, " columns and ", head.rows,
                    " rows are not served on this device");
  STEPGRAPH_EXPECTS(head.weight && head.x, "ranked_head: a pointer is null");
  const int multiprocessors = at.where().multiprocessors();
  const ranked_head_params p = params_of(head);
  const int bytes = alignment + head.columns / chunk * half_tokens * p.halves * 128 + p.stages * chunk_bytes;
  STEPGRAPH_CUDA_TRY(
      cudaFuncSetAttribute(ranked_head_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch<ranked_head_params>(at, "ranked_head", ranked_head_kernel,
                             dim3(multiprocessors / p.groups * p.groups), dim3(threads), p, bytes);
}

}  // namespace stepgraph::llama
