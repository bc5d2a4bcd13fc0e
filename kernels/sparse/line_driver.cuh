#pragma once

#include <algorithm>

#include "kernels/launch.cuh"
#include "kernels/sparse/line_driver.hpp"

namespace stepgraph {

/// The threads of one warp.
class warp_team {
 public:
  explicit __device__ warp_team(std::int32_t*) {}
  __device__ static int rank() { return static_cast<int>(threadIdx.x) & 31; }
  __device__ static constexpr int size() { return 32; }
  __device__ static std::int32_t sum(std::int32_t value) { return __reduce_add_sync(~0u, value); }
  __device__ static std::int32_t maximum(std::int32_t value) { return __reduce_max_sync(~0u, value); }
};

/// The threads of one block of `threads`.
template <int threads>
class whole_block_team {
 public:
  explicit __device__ whole_block_team(std::int32_t* shared) : shared_(shared) {}
  __device__ static int rank() { return static_cast<int>(threadIdx.x); }
  __device__ static constexpr int size() { return threads; }
  __device__ std::int32_t sum(std::int32_t value) {
    return across(__reduce_add_sync(~0u, value), 0, [](std::int32_t a, std::int32_t b) { return a + b; });
  }
  __device__ std::int32_t maximum(std::int32_t value) {
    return across(__reduce_max_sync(~0u, value), INT32_MIN,
                  [](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
  }

 private:
  static constexpr int warps = threads / 32;

  template <class Join>
  __device__ std::int32_t across(std::int32_t of_warp, std::int32_t none, Join join) {
    if ((threadIdx.x & 31) == 0) shared_[threadIdx.x >> 5] = of_warp;
    __syncthreads();
    std::int32_t all = none;
    for (int warp = 0; warp < warps; ++warp) all = join(all, shared_[warp]);
    __syncthreads();  // the words are used again
    return all;
  }
  std::int32_t* shared_;
};

/// Threads of a block, and blocks a multiprocessor that the grid is held to.
template <class Op>
constexpr int line_threads = Op::warp_a_line ? 128 : 256;
template <class Op>
constexpr int line_blocks = Op::warp_a_line ? 16 : 8;

// grid: a team a part of a line and one for the vectors, as far as the multiprocessors hold so many at once
// team 0 makes the vectors, team 1 + i part i and every part as many teams further on
template <class Op, int threads>
__global__ void __launch_bounds__(threads) run_lines(const __grid_constant__ Op op) {
  wait_for_predecessor();
  using team_type = std::conditional_t<Op::warp_a_line, warp_team, whole_block_team<threads>>;
  __shared__ std::int32_t shared[32];
  constexpr int teams_a_block = threads / team_type::size();
  team_type team(shared);
  const int own = static_cast<int>(blockIdx.x) * teams_a_block + static_cast<int>(threadIdx.x) / team.size();
  if (own == 0) return op.vectors(team);
  const auto state = op.begin(team);
  const std::int64_t teams = std::int64_t{gridDim.x} * teams_a_block - 1;
  const int shift = op.parts_shift();
  const std::int64_t parts = std::int64_t{op.lines()} << shift;
  for (std::int64_t i = own - 1; i < parts; i += teams) {
    const auto index = static_cast<int>(i >> shift), part = static_cast<int>(i & ((1 << shift) - 1));
    if (index < state.live)
      op.line(team, state, index, part);
    else if (part == 0)
      op.dead(team, index);
  }
}

template <class Op, int threads, int blocks_a_multiprocessor>
void launch_lines_shaped(stream_ref at, const Op& op) {
  constexpr int teams_a_block = Op::warp_a_line ? threads / 32 : 1;
  const std::int64_t parts = std::int64_t{op.lines()} << op.parts_shift();
  const std::int64_t wanted = (parts + teams_a_block) / teams_a_block;
  const std::int64_t most = std::int64_t{blocks_a_multiprocessor} * at.where().multiprocessors();
  launch<Op>(at, Op::name, run_lines<Op, threads>,
             dim3(static_cast<unsigned>(std::max<std::int64_t>(2, std::min(wanted, most)))), dim3(threads),
             op);
}

template <class Op>
void launch_lines_cuda(stream_ref at, const Op& op) {
  launch_lines_shaped<Op, line_threads<Op>, line_blocks<Op>>(at, op);
}

}  // namespace stepgraph
