#pragma once

#include <algorithm>

#include "kernels/sample/row_cluster.cuh"
#include "kernels/sample/row_driver.hpp"

namespace stepgraph {

// grid: captured lines
// a block does what the op does with its line; one of a dead line writes its fixed-size outputs and ends
template <class Op>
__global__ void __launch_bounds__(row_team_threads) run_rows(const __grid_constant__ Op op) {
  __shared__ block_row_team::storage storage;
  __shared__ typename Op::scratch scratch;
  wait_for_predecessor();
  block_row_team team(storage);
  op.row(team, scratch, static_cast<int>(blockIdx.x));
}

template <class Op>
struct row_cluster_params {
  Op op;
  bool holds;  // a block has room for its part of a line
};

/// Dynamic shared memory: what a team exchanges, then its part of a line.
template <class Op>
struct row_cluster_shared {
  cluster_row_team::storage team;
  typename Op::scratch scratch;
};
template <class Op>
constexpr std::size_t row_cluster_part = (sizeof(row_cluster_shared<Op>) + 15) / 16 * 16;

// grid: blocks of a cluster, captured lines
// a cluster does what the op does with its line; one of a dead line writes its fixed-size outputs and ends
template <class Op, int Resident>
__global__ void __launch_bounds__(row_team_threads, Resident) STEPGRAPH_CLUSTER(row_cluster_blocks)
    run_row_clusters(const __grid_constant__ row_cluster_params<Op> p) {
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& shared = *reinterpret_cast<row_cluster_shared<Op>*>(bytes);
  auto* const part = reinterpret_cast<float*>(bytes + row_cluster_part<Op>);
  cluster_row_team team(shared.team, p.holds ? part : nullptr);
  wait_for_predecessor();
  p.op.row(team, shared.scratch, static_cast<int>(blockIdx.y));
}

template <class Op, int Resident>
void launch_row_clusters(stream_ref at, const Op& op) {
  int there = 0;
  STEPGRAPH_CUDA_TRY(
      cudaDeviceGetAttribute(&there, cudaDevAttrMaxSharedMemoryPerBlockOptin, at.where().ordinal()));
  constexpr std::size_t fixed = row_cluster_part<Op>, worth = 160 << 10;
  const std::size_t most = std::min(worth, static_cast<std::size_t>(there));
  const std::size_t part = 4ul * cluster_row_team::share(op.vocab_size());
  const bool holds = fixed + part <= most;
  STEPGRAPH_CUDA_TRY(cudaFuncSetAttribute(
      run_row_clusters<Op, Resident>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)));
  launch<row_cluster_params<Op>>(at, Op::name, run_row_clusters<Op, Resident>,
                                 dim3(row_cluster_blocks, op.rows()), dim3(row_team_threads), {op, holds},
                                 fixed + (holds ? part : 0));
}

template <class Op>
void launch_rows_cuda(stream_ref at, const Op& op) {
  if constexpr (requires { op.vocab_size(); }) {
    // note: by the vocabulary alone, so that what a line comes to does not depend on the lines beside it
    constexpr int worth_cluster = 4096;
    int major = 0;
    STEPGRAPH_CUDA_TRY(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, at.where().ordinal()));
    constexpr int most_lines = 65535;  // of a grid's second dimension
    if (major >= 9 && op.vocab_size() >= worth_cluster && op.rows() <= most_lines) {
      // the same code with more registers where all blocks are resident at once anyway
      const bool few = op.rows() * row_cluster_blocks <= 2 * at.where().multiprocessors();
      return few ? launch_row_clusters<Op, 2>(at, op) : launch_row_clusters<Op, 3>(at, op);
    }
  }
  launch<Op>(at, Op::name, run_rows<Op>, dim3(op.rows()), dim3(row_team_threads), op);
}

}  // namespace stepgraph
