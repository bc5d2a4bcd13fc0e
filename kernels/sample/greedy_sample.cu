#include <cooperative_groups.h>

#include <cub/block/block_reduce.cuh>

#include "kernels/launch.cuh"
#include "kernels/sample/greedy_sample.hpp"

namespace stepgraph {
namespace {

constexpr int threads = 1024;

struct candidate {
  float logit;
  int id;
  int nan_id;  // lowest id with a NaN, or INT_MAX
};

struct better {
  __device__ candidate operator()(const candidate& a, const candidate& b) const {
    const bool take_b = b.logit > a.logit || (b.logit == a.logit && b.id < a.id);
    return {take_b ? b.logit : a.logit, take_b ? b.id : a.id, a.nan_id < b.nan_id ? a.nan_id : b.nan_id};
  }
};

/// Takes a logit whose id lies above all ids seen.
__device__ void take_later(candidate& best, float logit, int id) {
  if (logit > best.logit || best.id == INT_MAX) {
    if (!isnan(logit)) best = {logit, id, best.nan_id};
  }
  if (isnan(logit)) best.nan_id = min(best.nan_id, id);
}

/// The best of a thread's share of [first, last), whose lines are whole and aligned 16-byte vectors.
__device__ candidate best_of_vectors(const float* logits, int first, int last) {
  constexpr int together = 4;
  candidate best{-INFINITY, INT_MAX, INT_MAX};
  for (int at = first + 4 * threadIdx.x; at < last; at += 4 * threads * together) {
    float4 each[together];
#pragma unroll
    for (int i = 0; i < together; ++i)
      if (at + 4 * threads * i < last)
        each[i] = *reinterpret_cast<const float4*>(logits + at + 4 * threads * i);
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int id = at + 4 * threads * i;
      if (id >= last) break;
      take_later(best, each[i].x, id);
      take_later(best, each[i].y, id + 1);
      take_later(best, each[i].z, id + 2);
      take_later(best, each[i].w, id + 3);
    }
  }
  return best;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define STEPGRAPH_CLUSTER(blocks)
#else
#define STEPGRAPH_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#endif

// grid: blocks of a cluster, captured rows
// the blocks of a cluster find the largest logit of a row, each in its part; the first of them joins the parts
template <int Cluster>
__global__ void __launch_bounds__(threads) STEPGRAPH_CLUSTER(Cluster)
    greedy_sample_kernel(const __grid_constant__ greedy_sample_params p) {
  using reduce = cub::BlockReduce<candidate, threads>;
  __shared__ typename reduce::TempStorage storage;
  [[maybe_unused]] __shared__ candidate parts[Cluster];
  wait_for_predecessor();
  const int row = blockIdx.y, rank = blockIdx.x;
  const bool live = row < live_count(p.live_rows, p.rows);
  if (!live || (p.query_counts && p.query_counts[row] <= 0)) {
    if (threadIdx.x == 0 && rank == 0) p.out.store(p.next_token, row, live ? -1 : 0);
    return;
  }
  const float* const logits = p.logits + row * p.logits_stride;
  const std::uint32_t* const allowed = p.allowed.words ? p.allowed.words + row * p.allowed.stride : nullptr;
  const int share = ((p.vocab_size + Cluster - 1) / Cluster + 3) / 4 * 4;
  const int first = min(rank * share, p.vocab_size), last = min(first + share, p.vocab_size);
  candidate best{-INFINITY, INT_MAX, INT_MAX};
  if (!allowed && p.vocab_size % 4 == 0 && reinterpret_cast<std::uintptr_t>(logits) % 16 == 0) {
    best = best_of_vectors(logits, first, last);
  } else {
#pragma unroll 4
    for (int id = first + threadIdx.x; id < last; id += threads)
      if (!allowed || (allowed[id >> 5] >> (id & 31) & 1u)) take_later(best, logits[id], id);
  }
  best = reduce(storage).Reduce(best, better());
#if __CUDA_ARCH__ >= 900
  if (Cluster > 1) {
    auto cluster = cooperative_groups::this_cluster();
    cluster.sync();  // the first block is there
    if (threadIdx.x == 0) cluster.map_shared_rank(parts, 0)[rank] = best;
    cluster.sync();
    if (rank == 0 && threadIdx.x == 0)
      for (int i = 1; i < Cluster; ++i) best = better()(best, parts[i]);
  }
#endif
  if (threadIdx.x != 0 || rank != 0) return;
  if (best.nan_id != INT_MAX) p.faults.report(op_id::greedy_sample, row, row_status::nan_logits, best.nan_id);
  const bool none = best.nan_id == INT_MAX && best.id == INT_MAX;
  if (none) p.faults.report(op_id::greedy_sample, row, row_status::no_allowed_token, p.vocab_size);
  p.out.store(p.next_token, row, best.nan_id != INT_MAX ? -1 : none ? -2 : best.id);
}

template <int Cluster>
void launch_cluster(stream_ref at, const greedy_sample_params& params) {
  launch<greedy_sample_params>(at, "greedy_sample", greedy_sample_kernel<Cluster>, dim3(Cluster, params.rows),
                               dim3(threads), params);
}

}  // namespace

void detail::greedy_sample_cuda(stream_ref at, const greedy_sample_params& params) {
  int major = 0;
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, at.where().ordinal()));
  // few rows leave most of the GPU idle
  if (major >= 9 && params.rows <= 32 && params.vocab_size >= 16384)
    launch_cluster<8>(at, params);
  else
    launch_cluster<1>(at, params);
}

}  // namespace stepgraph
