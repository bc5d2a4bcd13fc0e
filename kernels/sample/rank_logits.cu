#include <algorithm>

#include "kernels/launch.cuh"
#include "kernels/sample/rank_logits.hpp"
#include "kernels/sample/ranked_logit.cuh"

namespace stepgraph {
namespace {

using detail::largest_of_warp;

constexpr int threads = 256, warps = threads / 32;
constexpr int together = 8;                     // vectors of a lane under way
constexpr int part_logits = together * 32 * 4;  // most of a part

struct rank_params {
  rank_logits_params op;
  std::int32_t part;   // logits of a warp's part, a multiple of 128
  std::int32_t parts;  // of a row
  bool vectors;        // rows are aligned and whole vectors of four
};

__device__ __forceinline__ std::uint64_t best_of_vectors(const float* logits, int first, int last) {
  float4 each[together];
#pragma unroll
  for (int i = 0; i < together; ++i)
    if (first + 128 * i < last) each[i] = __ldcs(reinterpret_cast<const float4*>(logits + first + 128 * i));
  std::uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < together; ++i) {
    const int id = first + 128 * i;
    if (id >= last) continue;
    best = max(best, max(max(ranked_logit(each[i].x, id), ranked_logit(each[i].y, id + 1)),
                         max(ranked_logit(each[i].z, id + 2), ranked_logit(each[i].w, id + 3))));
  }
  return best;
}

// grid: parts of all captured rows over the warps of a block
// a warp finds the largest of its part of a row
__global__ void __launch_bounds__(threads) rank_logits_kernel(const __grid_constant__ rank_params p) {
  wait_for_predecessor();
  const std::int64_t number = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32;
  const auto row = static_cast<int>(number / p.parts);
  const int lane = threadIdx.x % 32;
  if (row >= live_count(p.op.live_rows, p.op.rows)) return;
  if (p.op.query_counts && p.op.query_counts[row] <= 0) return;
  const int begin = static_cast<int>(number % p.parts) * p.part, end = min(begin + p.part, p.op.vocab_size);
  const float* const logits = p.op.logits + row * p.op.logits_stride;
  const std::uint32_t* const allowed =
      p.op.allowed.words ? p.op.allowed.words + row * p.op.allowed.stride : nullptr;
  std::uint64_t best = nothing_ranked;
  if (p.vectors && !allowed) {
    best = best_of_vectors(logits, begin + 4 * lane, end);
  } else {
#pragma unroll 4
    for (int id = begin + lane; id < end; id += 32)
      if (!allowed || (allowed[id >> 5] >> (id & 31) & 1u)) best = max(best, ranked_logit(logits[id], id));
  }
  best = largest_of_warp(best);
  if (lane == 0)
    atomicMax(reinterpret_cast<unsigned long long*>(p.op.ranked + row),
              static_cast<unsigned long long>(best));
}

}  // namespace

void detail::rank_logits_cuda(stream_ref at, const rank_logits_params& params) {
  // as many warps as keep the memory busy, and no more
  const std::int64_t wanted = std::int64_t{at.where().multiprocessors()} * 32;
  const std::int64_t each = std::int64_t{params.rows} * params.vocab_size / wanted;
  rank_params p{
      .op = params,
      .part = static_cast<std::int32_t>(std::clamp<std::int64_t>((each + 127) / 128 * 128, 256, part_logits)),
      .parts = 0,
      .vectors = params.vocab_size % 4 == 0 && params.logits_stride % 4 == 0 &&
                 reinterpret_cast<std::uintptr_t>(params.logits) % 16 == 0};
  p.parts = (params.vocab_size + p.part - 1) / p.part;
  const std::int64_t blocks = (std::int64_t{params.rows} * p.parts + warps - 1) / warps;
  launch<rank_params>(at, "rank_logits", rank_logits_kernel, dim3(static_cast<unsigned>(blocks)),
                      dim3(threads), p);
}

}  // namespace stepgraph
