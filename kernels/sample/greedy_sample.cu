#include "kernels/launch.cuh"
#include "kernels/sample/cluster.cuh"
#include "kernels/sample/greedy_sample.hpp"
#include "kernels/sample/ranked_logit.cuh"

namespace stepgraph {
namespace {

using detail::largest_of_warp;

constexpr int threads = 512, warps = threads / 32;

/// The best of a thread's share of [first, last), whose lines are whole and aligned 16-byte vectors.
__device__ std::uint64_t best_of_vectors(const float* logits, int first, int last) {
  constexpr int together = 4;
  std::uint64_t best = 0;
  for (int at = first + 4 * static_cast<int>(threadIdx.x); at < last; at += 4 * threads * together) {
    float4 each[together];
#pragma unroll
    for (int i = 0; i < together; ++i)
      if (at + 4 * threads * i < last)
        each[i] = *reinterpret_cast<const float4*>(logits + at + 4 * threads * i);
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int id = at + 4 * threads * i;
      if (id >= last) break;
      best = max(best, max(max(ranked_logit(each[i].x, id), ranked_logit(each[i].y, id + 1)),
                           max(ranked_logit(each[i].z, id + 2), ranked_logit(each[i].w, id + 3))));
    }
  }
  return best;
}

// grid: blocks of a cluster, captured rows
// the blocks of a cluster find the largest logit of a row, each in its part; the first of them joins the parts
template <int Cluster>
__global__ void __launch_bounds__(threads) STEPGRAPH_CLUSTER(Cluster)
    greedy_sample_kernel(const __grid_constant__ greedy_sample_params p) {
  __shared__ std::uint64_t of_warps[warps];
  __shared__ std::uint64_t of_blocks[Cluster];
  if constexpr (Cluster > 1) detail::cluster_arrive();
  wait_for_predecessor();
  const int row = blockIdx.y, rank = blockIdx.x;
  const int n = live_count(p.live_rows, p.rows), count = p.query_counts ? p.query_counts[row] : 1;
  const bool live = row < n;
  if (!live || count <= 0) {
    if (threadIdx.x == 0 && rank == 0) p.out.store_none(p.next_token, row, live);
    return;
  }
  const float* const logits = p.logits + row * p.logits_stride;
  const std::uint32_t* const allowed = p.allowed.words ? p.allowed.words + row * p.allowed.stride : nullptr;
  const int share = ((p.vocab_size + Cluster - 1) / Cluster + 3) / 4 * 4;
  const int first = min(rank * share, p.vocab_size), last = min(first + share, p.vocab_size);
  std::uint64_t best = 0;
  if (!allowed && p.vocab_size % 4 == 0 && reinterpret_cast<std::uintptr_t>(logits) % 16 == 0) {
    best = best_of_vectors(logits, first, last);
  } else {
#pragma unroll 4
    for (int id = first + static_cast<int>(threadIdx.x); id < last; id += threads)
      if (!allowed || (allowed[id >> 5] >> (id & 31) & 1u)) best = max(best, ranked_logit(logits[id], id));
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  best = largest_of_warp(best);
  if (lane == 0) of_warps[warp] = best;
  __syncthreads();
  if (warp == 0) best = largest_of_warp(lane < warps ? of_warps[lane] : 0);
  if constexpr (Cluster > 1) {
    detail::cluster_wait();  // the first block is there
    if (threadIdx.x == 0) detail::store_remote(&of_blocks[rank], 0, best);
    detail::cluster_arrive();
    detail::cluster_wait();
    if (rank == 0 && warp == 0) best = largest_of_warp(lane < Cluster ? of_blocks[lane] : 0);
  }
  if (threadIdx.x != 0 || rank != 0) return;
  const int id = id_of_ranked(best);
  const bool none = best == 0, nan = ranks_nan(best);
  if (nan) p.faults.report(op_id::greedy_sample, row, row_status::nan_logits, id);
  if (none) p.faults.report(op_id::greedy_sample, row, row_status::no_allowed_token, p.vocab_size);
  p.out.store(p.next_token, row, token_of_ranked(best));
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
  if (major >= 9 && params.rows <= 64 && params.vocab_size >= 16384)
    launch_cluster<8>(at, params);
  else
    launch_cluster<1>(at, params);
}

}  // namespace stepgraph
