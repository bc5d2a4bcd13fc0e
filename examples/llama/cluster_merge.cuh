#pragma once

#include "examples/llama/cluster_tile.cuh"

/// How the shares of several warps become lines of the output.
namespace stepgraph::llama::detail {

/// From a line's largest logits and sums to the next one's: one more, for the banks' sake.
template <int Sources>
constexpr int softmax_pitch = Sources + 1;

/// The same of the weighted values that sources leave of a line, one beside the other.
template <int Columns, int Sources>
constexpr int parts_pitch = Columns* Sources + 8;

/// Puts together what `Sources` warps have of each line: their weighted values' `Columns` columns in `parts`
/// [lines, parts_pitch], largest logits and sums in `softmaxes` [lines, softmax_pitch]. Calls
/// emit(line, column, values, log2_sum) with `vector` columns from `column` on, of a line that sees nothing
/// zeros and minus infinity. Ends without a barrier.
template <int Columns, int Sources, class Emit>
__device__ __forceinline__ void merge_lines(const float* parts, float2* softmaxes, int live_lines,
                                            const Emit& emit) {
  // eight threads have a line, and each of them some of its columns. note: the loop is a warp's own, since its
  // lanes talk to each other
  constexpr int line_threads = 8, steps = (Sources + line_threads - 1) / line_threads;
  constexpr int vector = Columns / line_threads < 4 ? Columns / line_threads : 4;
  constexpr int vectors = Columns / line_threads / vector;
  const int lane = threadIdx.x % 32, part = lane % line_threads;
#pragma unroll 1
  for (int first = threadIdx.x / 32 * 4; first < live_lines; first += cluster_warps * 4) {
    const int line = first + lane / line_threads;
    const bool there = line < live_lines;
    float2* const softmax = softmaxes + line * softmax_pitch<Sources>;
    float2 have[steps];
    float most = -INFINITY, total = 0.0f;
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const int from = i * line_threads + part;
      have[i] = there && from < Sources ? softmax[from] : float2{-INFINITY, 0.0f};
      most = fmaxf(most, have[i].x);
    }
#pragma unroll
    for (int distance = line_threads / 2; distance > 0; distance /= 2)
      most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      have[i].x = have[i].x == -INFINITY ? 0.0f : exp2_fast(have[i].x - most);
      total += have[i].x * have[i].y;
    }
#pragma unroll
    for (int distance = line_threads / 2; distance > 0; distance /= 2)
      total += __shfl_xor_sync(~0u, total, distance);
    const float factor = total != 0.0f ? __fdividef(1.0f, total) : 0.0f;
#pragma unroll
    for (int i = 0; i < steps; ++i)
      if (there && i * line_threads + part < Sources) softmax[i * line_threads + part].x = have[i].x * factor;
    __syncwarp();
    if (there) {
      float value[vectors][vector] = {};
#pragma unroll
      for (int from = 0; from < Sources; ++from) {
        const float weight = softmax[from].x;
        const float* const at = parts + line * parts_pitch<Columns, Sources> + from * Columns + part * vector;
#pragma unroll
        for (int i = 0; i < vectors; ++i)
#pragma unroll
          for (int e = 0; e < vector; ++e) {
            // note: who saw nothing has left nothing
            const float each = at[i * line_threads * vector + e];
            value[i][e] += weight != 0.0f ? weight * each : 0.0f;
          }
      }
      const float log2_sum = total != 0.0f ? most + __log2f(total) : -INFINITY;
#pragma unroll
      for (int i = 0; i < vectors; ++i) emit(line, (i * line_threads + part) * vector, value[i], log2_sum);
    }
    __syncwarp();
  }
}

/// What a warp has of the first `live_lines` lines: calls values(line, column, two of them) and, four times a
/// line, softmax(line, largest logit and sum).
template <int HeadSize, int QueryTiles, class Values, class Softmax>
__device__ __forceinline__ void for_each_share(query_tile<HeadSize> (&attention)[QueryTiles], int live_lines,
                                               const Values& values, const Softmax& softmax) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int q = 0; q < QueryTiles; ++q)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = attention[q].sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int line = q * 16 + half * 8 + lane / 4;
      if (line >= live_lines) continue;
#pragma unroll
      for (int n = 0; n < HeadSize / 8; ++n)
        values(line, n * 8 + lane % 4 * 2,
               float2{attention[q].weighted[n][2 * half], attention[q].weighted[n][2 * half + 1]});
      softmax(line, float2{attention[q].largest[half], sum});
    }
}

/// A line's columns from `column` on, where the output has them.
template <int HeadSize, int Vector>
__device__ __forceinline__ void store_line(const paged_attention_params& p, const row_shape& shape, int line,
                                           int column, const float (&value)[Vector]) {
  const int group = p.heads / p.kv_heads, token = shape.first_token + line / group,
            head = blockIdx.x * group + line % group;
  bf16* const to = static_cast<bf16*>(p.output) + (std::int64_t{token} * p.heads + head) * HeadSize + column;
  if constexpr (Vector == 1)
    *to = from_float<bf16>(value[0]);
  else
#pragma unroll
    for (int e = 0; e < Vector; e += 2)
      *reinterpret_cast<std::uint32_t*>(to + e) = pack<bf16>(value[e], value[e + 1]);
}

}  // namespace stepgraph::llama::detail
