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

// grid: captured rows
// a block finds the largest logit of its row
__global__ void __launch_bounds__(threads)
    greedy_sample_kernel(const __grid_constant__ greedy_sample_params p) {
  using reduce = cub::BlockReduce<candidate, threads>;
  __shared__ typename reduce::TempStorage storage;
  wait_for_predecessor();
  const int row = blockIdx.x;
  const bool live = row < live_count(p.live_rows, p.rows);
  if (!live || (p.query_counts && p.query_counts[row] <= 0)) {
    if (threadIdx.x == 0) p.out.store(p.next_token, row, live ? -1 : 0);
    return;
  }
  const float* const logits = p.logits + row * p.logits_stride;
  const std::uint32_t* const allowed = p.allowed.words ? p.allowed.words + row * p.allowed.stride : nullptr;
  candidate best{-INFINITY, INT_MAX, INT_MAX};
#pragma unroll 4
  for (int id = threadIdx.x; id < p.vocab_size; id += threads) {
    if (allowed && !(allowed[id >> 5] >> (id & 31) & 1u)) continue;
    const float logit = logits[id];
    best = better()(best, isnan(logit) ? candidate{-INFINITY, INT_MAX, id} : candidate{logit, id, INT_MAX});
  }
  best = reduce(storage).Reduce(best, better());
  if (threadIdx.x != 0) return;
  if (best.nan_id != INT_MAX) p.faults.report(op_id::greedy_sample, row, row_status::nan_logits, best.nan_id);
  const bool none = best.nan_id == INT_MAX && best.id == INT_MAX;
  if (none) p.faults.report(op_id::greedy_sample, row, row_status::no_allowed_token, p.vocab_size);
  p.out.store(p.next_token, row, best.nan_id != INT_MAX ? -1 : none ? -2 : best.id);
}

}  // namespace

void detail::greedy_sample_cuda(stream_ref at, const greedy_sample_params& params) {
  launch<greedy_sample_params>(at, "greedy_sample", greedy_sample_kernel, dim3(params.rows), dim3(threads),
                               params);
}

}  // namespace stepgraph
