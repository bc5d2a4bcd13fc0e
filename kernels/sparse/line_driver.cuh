#pragma once

#include <algorithm>

#include "kernels/columns.hpp"
#include "kernels/launch.cuh"
#include "kernels/sparse/line_driver.hpp"

namespace stepgraph {

/// The threads of one warp.
class warp_team {
 public:
  __device__ static int rank() { return static_cast<int>(threadIdx.x) & 31; }
  __device__ static constexpr int size() { return 32; }
  __device__ static std::int32_t sum(std::int32_t value) { return __reduce_add_sync(~0u, value); }
  __device__ static std::int32_t maximum(std::int32_t value) { return __reduce_max_sync(~0u, value); }
};

/// The threads of one block, which can hold `room` entries of a table's line in shared memory.
template <int threads, int room>
class whole_block_team {
 public:
  struct storage {
    alignas(16) std::int32_t entry[room > 0 ? room : 4];
    std::int32_t of_warp[2][32];
    std::uint64_t arrived;
  };
  explicit __device__ whole_block_team(storage& shared) : shared_(shared) {
    if (room > 0 && threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&shared_.arrived)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
  }
  __device__ static int rank() { return static_cast<int>(threadIdx.x); }
  __device__ static constexpr int size() { return threads; }
  __device__ std::int32_t sum(std::int32_t value) {
    const std::int32_t of_warp = across(__reduce_add_sync(~0u, value));
    return __reduce_add_sync(~0u, (threadIdx.x & 31) < warps ? of_warp : 0);
  }
  __device__ std::int32_t maximum(std::int32_t value) {
    return __reduce_max_sync(~0u, across(__reduce_max_sync(~0u, value)));
  }

  /// Copies the first `count` of the `columns` entries from `from` on into shared memory, by one bulk copy,
  /// unless they have no room there or cannot be copied so. All threads have called `maximum` since they last
  /// asked for an entry.
  __device__ bool hold(const std::int32_t* from, std::int64_t count, std::int64_t columns) {
    const std::int64_t whole = (count + 3) & ~std::int64_t{3};
    if (count <= 0 || whole > room || whole > columns || !aligned16(from)) return false;
    const auto bytes = static_cast<std::uint32_t>(whole) * 4;
    const std::uint32_t arrived = address(&shared_.arrived);
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(bytes)
                   : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              address(shared_.entry)),
          "l"(from), "r"(bytes), "r"(arrived)
          : "memory");
    }
    std::uint32_t done = 0;
    while (!done)
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.b32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(arrived), "r"(phase_)
          : "memory");
    phase_ ^= 1;
    return true;
  }
  __device__ std::int32_t held(std::int32_t index) const { return shared_.entry[index]; }

 private:
  static constexpr int warps = threads / 32;

  __device__ static std::uint32_t address(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }
  /// Of each lane's warp, the value of that warp (of warps by their number modulo those there are). Two rows of
  /// words take turns, so that one barrier does.
  __device__ std::int32_t across(std::int32_t of_warp) {
    turn_ ^= 1;
    if ((threadIdx.x & 31) == 0) shared_.of_warp[turn_][threadIdx.x >> 5] = of_warp;
    __syncthreads();
    return shared_.of_warp[turn_][(threadIdx.x & 31) % warps];
  }
  storage& shared_;
  std::uint32_t phase_ = 0;
  int turn_ = 0;
};

/// The live lines from `index` on of a team that had one before. Not inlined, so that it is in nobody's way.
template <class Op, int threads>
__device__ __noinline__ void run_other_lines(const Op& op, int index) {
  using team_of_block = whole_block_team<threads, 0>;
  __shared__ typename team_of_block::storage shared;
  team_of_block team(shared);
  const auto state = op.begin(team);
  for (; index < op.lines() && index < state.live; index += static_cast<int>(gridDim.x))
    op.line(team, state, index, op.place_of(team, index));
}

/// A line a block: what comes before its loads is as short as it can be. The successor's blocks, which would
/// be in the way of that, may start only when the number of live lines is on its way.
template <class Op, int threads>
__global__ void __launch_bounds__(threads, Op::least_blocks) run_one_line(const __grid_constant__ Op op) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  using team_of_block = whole_block_team<threads, 0>;
  __shared__ typename team_of_block::storage shared;
  team_of_block team(shared);
  const int index = static_cast<int>(blockIdx.x);
  const auto state = op.begin(team);
  const auto place = op.place_of(team, index);
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  if (index < op.lines() && index < state.live) op.line(team, state, index, place);
  if (index + static_cast<int>(gridDim.x) < op.lines()) [[unlikely]]
    run_other_lines<Op, threads>(op, index + static_cast<int>(gridDim.x));
}

// grid: a team a line, and one for the vectors if there are any, as far as the multiprocessors hold so many at
// once; team 0 makes the vectors, the next ones a line and every so-manieth further on
template <class Op, int threads>
__global__ void __launch_bounds__(threads, Op::least_blocks* Op::threads / threads)
    run_lines(const __grid_constant__ Op op) {
  wait_for_predecessor();
  const auto run = [&op](auto& team) {
    constexpr int teams_a_block = threads / team.size(), vector_teams = Op::has_vectors ? 1 : 0;
    const int own =
        static_cast<int>(blockIdx.x) * teams_a_block + static_cast<int>(threadIdx.x) / team.size();
    if constexpr (Op::has_vectors)
      if (own == 0) return op.vectors(team);
    const auto state = op.begin(team);
    const int teams = static_cast<int>(gridDim.x) * teams_a_block - vector_teams;
    for (int index = own - vector_teams; index < op.lines(); index += teams) {
      const auto place = op.place_of(team, index);
      if (index < state.live)
        op.line(team, state, index, place);
      else
        op.dead(team, index);
    }
  };
  if constexpr (Op::warp_a_line) {
    warp_team team;
    run(team);
  } else {
    __shared__ typename whole_block_team<threads, Op::room>::storage shared;
    whole_block_team<threads, Op::room> team(shared);
    run(team);
  }
}

/// Whether most teams of an op have one live line or none.
template <class Op>
constexpr bool has_one_line_first = false;
template <class Op>
requires(Op::one_line_first) constexpr bool has_one_line_first<Op> = true;

template <class Op, int threads, int blocks_a_multiprocessor>
void launch_lines_shaped(stream_ref at, const Op& op) {
  constexpr int teams_a_block = Op::warp_a_line ? threads / 32 : 1;
  const std::int64_t teams = std::int64_t{op.lines()} + (Op::has_vectors ? 1 : 0);
  const std::int64_t wanted = (teams + teams_a_block - 1) / teams_a_block;
  const std::int64_t most = std::int64_t{blocks_a_multiprocessor} * at.where().multiprocessors();
  const dim3 grid(static_cast<unsigned>(std::max<std::int64_t>(2, std::min(wanted, most))));
  if constexpr (has_one_line_first<Op>)
    launch<Op>(at, Op::name, run_one_line<Op, threads>, grid, dim3(threads), op);
  else
    launch<Op>(at, Op::name, run_lines<Op, threads>, grid, dim3(threads), op);
}

template <class Op>
void launch_lines_cuda(stream_ref at, const Op& op) {
  launch_lines_shaped<Op, Op::threads, Op::blocks_a_multiprocessor>(at, op);
}

}  // namespace stepgraph
