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

constexpr int block_tokens = 128;                   // lines of a block's sums
[[maybe_unused]] constexpr int tile_rows = 128;     // and their columns
constexpr int chunk = 64;                           // columns of a line of 128 bytes in shared memory
constexpr int chunk_bytes = 128 * 128;              // of either side: both have 128 lines
constexpr int loading = 128, threads = loading + 256;
constexpr int most_stages = 6, least_stages = 2;
constexpr int alignment = 1024;

struct ranked_head_params {
  ranked_head head;
  int groups;  // of block_tokens
  int stages;  // chunks of weights under way
};

#if STEPGRAPH_HAS_WGMMA

/// The largest of a thread's sums for one token, tile after tile in ascending order of ids.
struct largest_sum {
  float value = -INFINITY;
  int id;  // where all are that small it is the first, or -1 if there is none
  std::uint64_t nan = 0;

  __device__ void take(const float (&sums)[tile_rows / 8][4], int line, int first) {
    bool some_nan = false;
#pragma unroll
    for (int j = 0; j < tile_rows / 8; ++j)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float sum = sums[j][2 * line + k];
        const bool more = sum > value;
        some_nan |= sum != sum;
        value = more ? sum : value;
        id = more ? first + 8 * j + k : id;
      }
    if (!some_nan) return;
#pragma unroll
    for (int j = 0; j < tile_rows / 8; ++j)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        if (const float sum = sums[j][2 * line + k]; sum != sum)
          nan = max(nan, ranked_logit(sum, first + 8 * j + k));
  }
  __device__ std::uint64_t ranked() const {
    return nan != 0 ? nan : id >= 0 ? ranked_logit(value, id) : 0;
  }
};

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

/// 128 lines of 64 columns to shared memory, by the loading warps; zeros past `lines`.
__device__ __forceinline__ void load_chunk(std::uint32_t to, const bf16* from, int columns, int lines) {
  const int piece = threadIdx.x % 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int line = threadIdx.x / 8 + 16 * i;
    const bool there = line < lines;
    copy_async(to + place(line, piece), from + (there ? std::int64_t{line} * columns : 0) + piece * 8, there);
  }
}

#endif

// grid: a block a multiprocessor, blocks of the groups of 128 tokens in turn
// a block keeps its tokens in shared memory and walks over tiles of 128 rows of the weights, which four warps load; two
// warpgroups multiply, each for 64 tokens, and keep the largest sum they have met
__global__ void __launch_bounds__(threads, 1)
    ranked_head_kernel(const __grid_constant__ ranked_head_params p) {
#if STEPGRAPH_HAS_WGMMA
  extern __shared__ std::byte dynamic[];
  __shared__ std::uint64_t full[most_stages], empty[most_stages], tokens_there;
  const ranked_head& head = p.head;
  const int chunks = head.columns / chunk, tiles = (head.rows + tile_rows - 1) / tile_rows;
  const int group = blockIdx.x % p.groups, first_token = group * block_tokens;
  const int first_tile = blockIdx.x / p.groups, step = gridDim.x / p.groups;
  const std::uint32_t x = (shared_address(dynamic) + alignment - 1) & ~(alignment - 1);
  const std::uint32_t ring = x + chunks * chunk_bytes;
  allow_successor();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < p.stages; ++stage) {
      init_barrier(shared_address(&full[stage]), loading);
      init_barrier(shared_address(&empty[stage]), 2);
    }
    init_barrier(shared_address(&tokens_there), loading);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (threadIdx.x < loading) {
    ring_stage stage;
    int loaded = 0;
    for (int tile = first_tile; tile < tiles; tile += step)
      for (int c = 0; c < chunks; ++c, ++loaded) {
        // as much as there is room for is fetched before the predecessor ends
        if (loaded == p.stages) {
          wait_for_predecessor();
          for (int each = 0; each < chunks; ++each)
            load_chunk(x + each * chunk_bytes,
                       head.x + std::int64_t{first_token} * head.columns + each * chunk, head.columns,
                       head.tokens - first_token);
          arrive_after_copies(shared_address(&tokens_there));
        }
        wait_barrier(shared_address(&empty[stage.number]), stage.parity ^ 1);
        load_chunk(ring + stage.number * chunk_bytes,
                   head.weight + std::int64_t{tile} * tile_rows * head.columns + c * chunk, head.columns,
                   head.rows - tile * tile_rows);
        arrive_after_copies(shared_address(&full[stage.number]));
        stage.advance(p.stages);
      }
    if (loaded <= p.stages) {
      wait_for_predecessor();
      for (int each = 0; each < chunks; ++each)
        load_chunk(x + each * chunk_bytes, head.x + std::int64_t{first_token} * head.columns + each * chunk,
                   head.columns, head.tokens - first_token);
      arrive_after_copies(shared_address(&tokens_there));
    }
    // note: what is under way must not outlive the block's barriers
    wait_copies<0>();
    return;
  }

  const int half = (static_cast<int>(threadIdx.x) - loading) / 128, lane = threadIdx.x % 32;
  const int token = first_token + half * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const shared_matrix tokens(x + half * 64 * 128, 16);
  const int own_row = lane % 4 * 2, first_id = first_tile * tile_rows + own_row;
  largest_sum best[2] = {{.id = first_id < head.rows ? first_id : -1},
                         {.id = first_id < head.rows ? first_id : -1}};
  ring_stage stage;
  wait_for_predecessor();  // the numbers to raise are the predecessors'
  wait_barrier(shared_address(&tokens_there), 0);
  for (int tile = first_tile; tile < tiles; tile += step) {
    float sums[tile_rows / 8][4] = {};
    int before = -1;
    for (int c = 0; c < chunks; ++c) {
      wait_barrier(shared_address(&full[stage.number]), stage.parity);
      fence_for_products();
      const shared_matrix weights(ring + stage.number * chunk_bytes, 16);
      begin_products();
#pragma unroll
      for (int k = 0; k < chunk / 16; ++k)
        warpgroup_product<bf16, tile_rows>::both_shared(sums, tokens.from(c * chunk_bytes + k * 32),
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
    const int first = tile * tile_rows + own_row;
    if (tile == tiles - 1)
#pragma unroll
      for (int j = 0; j < tile_rows / 8; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (first + 8 * j + k % 2 >= head.rows) sums[j][k] = -INFINITY;
#pragma unroll
    for (int line = 0; line < 2; ++line) best[line].take(sums, line, first);
  }
#pragma unroll
  for (int line = 0; line < 2; ++line) {
    std::uint64_t most = best[line].ranked();
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    most = max(most, __shfl_xor_sync(~0u, most, 2));
    if (lane % 4 == 0 && token + 8 * line < head.tokens && most != 0)
      atomicMax(reinterpret_cast<unsigned long long*>(head.ranked + token + 8 * line),
                static_cast<unsigned long long>(most));
  }
#endif
}

/// Chunks of weights that find room beside the tokens; 0 if too few do.
int stages_beside(int columns) {
  constexpr int room = 227 * 1024 - alignment - 256;
  const int stages = std::min((room - columns / chunk * chunk_bytes) / chunk_bytes, most_stages);
  return stages >= least_stages ? stages : 0;
}

int groups_of(int tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace

bool serves(device where, int columns, int tokens) {
  return columns % chunk == 0 && stages_beside(columns) > 0 && groups_of(tokens) <= where.multiprocessors() &&
         split_device::of(where).warpgroups;
}

void multiply(stream_ref at, const ranked_head& head) {
  STEPGRAPH_EXPECTS(head.tokens > 0 && head.rows > 0 && serves(at.where(), head.columns, head.tokens),
                    "ranked_head: ", head.tokens, " tokens of ", head.columns, " columns and ", head.rows,
                    " rows are not served on this device");
  STEPGRAPH_EXPECTS(head.weight && head.x && head.ranked, "ranked_head: a pointer is null");
  const ranked_head_params p{head, groups_of(head.tokens), stages_beside(head.columns)};
  const int blocks = at.where().multiprocessors() / p.groups * p.groups;
  const int bytes = alignment + (head.columns / chunk + p.stages) * chunk_bytes;
  STEPGRAPH_CUDA_TRY(
      cudaFuncSetAttribute(ranked_head_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch<ranked_head_params>(at, "ranked_head", ranked_head_kernel, dim3(blocks), dim3(threads), p, bytes);
}

}  // namespace stepgraph::llama
