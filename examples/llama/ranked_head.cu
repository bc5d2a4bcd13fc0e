#include "examples/llama/ranked_head.hpp"

#include <algorithm>

#include "examples/llama/head_products.cuh"
#include "examples/llama/largest_logits.cuh"
#include "examples/llama/successor.cuh"
#include "graphs/error.hpp"
#include "kernels/launch.cuh"

namespace stepgraph::llama {
namespace {

using namespace stepgraph::detail;

constexpr int tile_rows = 64;                 // of weights, a warpgroup's lines
constexpr int chunk = 64;                     // columns of a line of 128 bytes in shared memory
constexpr int chunk_bytes = tile_rows * 128;  // of weights
constexpr int loading = 128, multiplying = warpgroup_threads, threads = loading + 2 * multiplying;
constexpr int most_stages = 16, least_stages = 4, most_chunks = 16;
constexpr int alignment = 1024;
constexpr int widths[] = {8, 32, 64, 160};  // tokens of a block

/// Of shared memory, for both warpgroups' `largest_memory`, which the host's compiler does not know.
STEPGRAPH_HD constexpr int held_bytes(int width) {
  return 2 * (4 * 8 * (width > multiplying ? width / 2 : width) + 4 * 4 + 16);
}

struct ranked_head_params {
  ranked_head head;
  int groups;  // of tokens, each with blocks of its own
  int each;    // tokens of a group
  int stages;  // chunks of weights under way
};

#if STEPGRAPH_HAS_WGMMA

struct ring_stage {
  int number = 0;
  std::uint32_t parity = 0;
  __device__ void advance(int stages, int by = 1) {
    for (number += by; number >= stages; number -= stages) parity ^= 1;
  }
};

/// Where a piece of 16 bytes of a line of 128 lies, permuted as the products want it.
__device__ __forceinline__ std::uint32_t place(int line, int piece) {
  return line * 128 + ((piece ^ line) & 7) * 16;
}

#endif

// grid: a block a multiprocessor, blocks of the groups of tokens in turn
// a block keeps its tokens in shared memory and walks over tiles of 64 rows of the weights, which four warps load. Two
// warpgroups take the tiles in turn: while one ranks what it has, the other multiplies
template <int Tokens>
__global__ void __launch_bounds__(threads, 1)
    ranked_head_kernel(const __grid_constant__ ranked_head_params p) {
#if STEPGRAPH_HAS_WGMMA
  extern __shared__ std::byte dynamic[];
  __shared__ std::uint64_t full[most_stages], empty[most_stages], tokens_there[most_chunks], turn[2];
  __shared__ largest_memory<Tokens> held[2];
  static_assert(sizeof held <= held_bytes(Tokens));
  const ranked_head& head = p.head;
  const int chunks = head.columns / chunk, tiles = (head.rows + tile_rows - 1) / tile_rows;
  const int first_token = static_cast<int>(blockIdx.x) % p.groups * p.each;
  const int end_token = min(first_token + p.each, head.tokens);
  const int first_tile = blockIdx.x / p.groups, step = gridDim.x / p.groups;
  const std::uint32_t x = (shared_address(dynamic) + alignment - 1) & ~(alignment - 1);
  const std::uint32_t ring = x + chunks * Tokens * 128;
  allow_successor();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < p.stages; ++stage) {
      init_barrier(shared_address(&full[stage]), loading);
      init_barrier(shared_address(&empty[stage]), 1);
    }
    for (int c = 0; c < chunks; ++c) init_barrier(shared_address(&tokens_there[c]), 2 * multiplying);
    for (std::uint64_t& each : turn) init_barrier(shared_address(&each), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (threadIdx.x < loading) {
    give_registers<40>();
    // the weights are nobody's output: they are fetched before the predecessor ends
    const int piece = threadIdx.x % 8, first_line = threadIdx.x / 8;
    ring_stage stage;
    for (int tile = first_tile; tile < tiles; tile += step) {
      const bf16* const from =
          head.weight + (std::int64_t{tile} * tile_rows + first_line) * head.columns + piece * 8;
      const int live = head.rows - tile * tile_rows - first_line;
      for (int c = 0; c < chunks; ++c) {
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
    // note: what is under way must not outlive the block's barriers
    wait_copies<0>();
    return;
  }

  take_registers<232>();
  const int thread = static_cast<int>(threadIdx.x) - loading, group = thread / multiplying;
  wait_for_predecessor();
  {
    constexpr int lines_at_once = 2 * multiplying / 8, rounds = (Tokens + lines_at_once - 1) / lines_at_once;
    const int piece = thread % 8, first_line = thread / 8;
    const bf16* from[rounds];
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      const int token = first_token + first_line + lines_at_once * i;
      from[i] = nullptr;
      if (token < end_token)
        from[i] = head.x + std::int64_t{head.source ? head.source[token] : token} * head.columns + piece * 8;
    }
    for (int c = 0; c < chunks; ++c) {
#pragma unroll
      for (int i = 0; i < rounds; ++i)
        if (first_line + lines_at_once * i < Tokens)
          copy_async(x + c * Tokens * 128 + place(first_line + lines_at_once * i, piece),
                     from[i] ? from[i] + c * chunk : head.x, from[i] != nullptr);
      arrive_after_copies(shared_address(&tokens_there[c]));
    }
  }

  const int own_row = thread / 32 % 4 * 16 + thread % 32 / 4;
  largest_logit known[Tokens / 8][2];
  const auto forget = [&](int tile) {
#pragma unroll
    for (auto& tokens : known)
#pragma unroll
      for (largest_logit& each : tokens) each = {-INFINITY, tile * tile_rows + own_row};
  };
  forget(first_tile + group * step);
  const raised_numbers numbers{head.ranked, head.line, head.rows};
  const shared_matrix tokens(x, 16);
  ring_stage stage;
  if (group == 1) stage.advance(p.stages, chunks);
  bool waits = group == 1;  // for the other's products
  std::uint32_t turns = 0;
  bool raises = false;
  for (int tile = first_tile + group * step;; tile += 2 * step) {
    // while the other multiplies
    if (raises) raise_all<Tokens>(numbers, known, held[group], first_token, end_token, 1 + group);
    raises = false;
    if (tile >= tiles) break;
    const bool is_first = tile == first_tile + group * step;
    __syncwarp();                    // what raises parts a warp's lanes, and its products are one
    float sums[Tokens / 8][4] = {};  // set, or they would take registers while `raise_all` runs
    // note: so a ring's phase is never waited for before the one before it is over
    if (waits) {
      wait_barrier(shared_address(&turn[group]), turns);
      turns ^= 1;
    }
    waits = true;
    // but for its first, few of a tile's logits are larger than what all blocks know by then
    const bool few = head.ranked && !is_first && (tile + 1) * tile_rows <= head.rows;
    found_numbers<Tokens> found;
    int before = -1;
    for (int c = 0; c < chunks; ++c) {
      if (few && c == chunks / 2) found.read(numbers, first_token, end_token);
      if (is_first) wait_barrier(shared_address(&tokens_there[c]), 0);
      wait_barrier(shared_address(&full[stage.number]), stage.parity);
      fence_for_products();
      const shared_matrix weights(ring + stage.number * chunk_bytes, 16);
      begin_products();
#pragma unroll
      for (int k = 0; k < chunk / 16; ++k)
        warpgroup_product<bf16, Tokens>::both_shared(sums, weights.from(k * 32),
                                                     tokens.from(c * Tokens * 128 + k * 32), c > 0 || k > 0);
      commit_products();
      if (before >= 0) {
        wait_products<1>();
        if (thread % multiplying == 0) arrive(shared_address(&empty[before]));
      }
      before = stage.number;
      stage.advance(p.stages);
    }
    if (tile + step < tiles && thread % multiplying == 0) arrive(shared_address(&turn[group ^ 1]));
    if (few) found.bound(held[group], 1 + group);
    wait_products<0>();
    pin(sums);
    if (thread % multiplying == 0) arrive(shared_address(&empty[before]));
    stage.advance(p.stages, chunks);
    if (!head.ranked) continue;
    if (few) {
      if (raise_few<Tokens>(numbers, sums, tile * tile_rows + own_row, held[group], first_token, end_token,
                            1 + group))
        continue;
      forget(tile);  // what was known of tiles before it has been raised
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * tile_rows + own_row + 8 * half;
      if (row >= head.rows) continue;
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) known[j][k].raise(sums[j][2 * half + k], row);
    }
    raises = true;
  }
  wait_copies<0>();
#endif
}

template <int Tokens>
constexpr auto kernel_of = &ranked_head_kernel<Tokens>;

/// How a block's shared memory is spent on `width` tokens; fewer stages than `least_stages`: it is not enough.
int stages_for(int width, int columns) {
  const int room = 227 * 1024 - alignment - 1024 - held_bytes(width);
  return std::min((room - columns / chunk * width * 128) / chunk_bytes, most_stages);
}

struct head_plan {
  ranked_head_params params;
  int width;
};

head_plan plan_of(const ranked_head& head) {
  int most = 0;
  for (const int width : widths)
    if (stages_for(width, head.columns) >= least_stages) most = width;
  head_plan made{.params = {.head = head, .groups = 0, .each = 0, .stages = 0}, .width = most};
  if (most == 0 || head.tokens <= 0) return made;
  made.params.groups = (head.tokens + most - 1) / most;
  made.params.each = (head.tokens + made.params.groups - 1) / made.params.groups;
  made.width = *std::find_if(std::begin(widths), std::end(widths),
                             [&](int width) { return width >= made.params.each; });
  made.params.stages = stages_for(made.width, head.columns);
  return made;
}

template <int Tokens>
void launch_head(stream_ref at, const ranked_head_params& p) {
  const int bytes = alignment + p.head.columns / chunk * Tokens * 128 + p.stages * chunk_bytes;
  STEPGRAPH_CUDA_TRY(
      cudaFuncSetAttribute(kernel_of<Tokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch<ranked_head_params>(at, "ranked_head", kernel_of<Tokens>,
                             dim3(at.where().multiprocessors() / p.groups * p.groups), dim3(threads), p,
                             bytes);
}

}  // namespace

bool serves(device where, int columns, int tokens) {
  if (tokens <= 0 || columns <= 0 || columns % chunk != 0 || columns / chunk > most_chunks) return false;
  const head_plan plan = plan_of({.columns = columns, .tokens = tokens});
  return plan.width > 0 && plan.params.groups <= where.multiprocessors() &&
         split_device::of(where).warpgroups;
}

void multiply(stream_ref at, const ranked_head& head) {
  STEPGRAPH_EXPECTS(head.rows > 0 && serves(at.where(), head.columns, head.tokens),
                    "ranked_head: ", head.tokens, " tokens of ", head.columns, " columns and ", head.rows,
                    " rows are not served on this device");
  STEPGRAPH_EXPECTS(head.weight && head.x, "ranked_head: a pointer is null");
  const head_plan plan = plan_of(head);
  switch (plan.width) {
    case 8:
      return launch_head<8>(at, plan.params);
    case 32:
      return launch_head<32>(at, plan.params);
    case 64:
      return launch_head<64>(at, plan.params);
    default:
      return launch_head<160>(at, plan.params);
  }
}

}  // namespace stepgraph::llama
