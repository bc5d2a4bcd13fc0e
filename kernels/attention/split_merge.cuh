#pragma once

#include "kernels/attention/mma.cuh"
#include "kernels/attention/split_plan.cuh"

namespace stepgraph::detail {

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

/// Part of one query row's attention: four elements of the weighted values, the largest logit (base 2) and the sum of
/// weights, both relative to it.
struct partial {
  float4 weighted = {0, 0, 0, 0};
  float largest = -INFINITY;
  float sum = 0;

  __device__ void add(const float4& values, float their_largest, float their_sum) {
    const float now = fmaxf(largest, their_largest);
    if (now == -INFINITY) return;  // neither has seen anything
    const float ours = exp2_fast(largest - now), theirs = exp2_fast(their_largest - now);
    weighted.x = weighted.x * ours + values.x * theirs;
    weighted.y = weighted.y * ours + values.y * theirs;
    weighted.z = weighted.z * ours + values.z * theirs;
    weighted.w = weighted.w * ours + values.w * theirs;
    sum = sum * ours + their_sum * theirs;
    largest = now;
  }
};

/// Writes four elements of a query row's output, and by its first thread the log-sum-exp.
template <class T, int HeadSize>
__device__ void write_output(const split_params& p, const row_work& work, const segment& s, int line, int vector,
                             partial all) {
  const int group = p.op.heads / p.op.kv_heads;
  const int packed = s.first_line + line;
  const int head = s.kv_head * group + packed % group;
  const std::int64_t at = std::int64_t{work.first_token + packed / group} * p.op.heads + head;
  float sum = all.sum, largest = all.largest, factor = 0;
  if (sum > 0) {
    float scale = 1;
    if (p.op.sink) {
      const float sink = p.op.sink[head] * log2_e;
      largest = fmaxf(largest, sink);
      scale = exp2_fast(all.largest - largest);
      sum = sum * scale + exp2_fast(sink - largest);
    }
    factor = scale / sum;
  }
  const uint2 packed_output = {pack<T>(all.weighted.x * factor, all.weighted.y * factor),
                               pack<T>(all.weighted.z * factor, all.weighted.w * factor)};
  *reinterpret_cast<uint2*>(static_cast<T*>(p.op.output) + at * HeadSize + vector * 4) = packed_output;
  if (p.op.log_sum_exp && vector == 0)
    p.op.log_sum_exp[at] = all.sum > 0 ? (largest + log2f(sum)) * ln_2 : -INFINITY;
}

/// Joins the warps' softmaxes, then either writes the unit's output or leaves a partial result; the last block to leave
/// one merges them all, in the order of the row's tokens, and sets the unit's counter back. `shared` holds the warps'
/// outputs [kv_warps][query_rows][output_pitch], then their largest logits and their sums [kv_warps][query_rows] each.
template <class T, int HeadSize, class Tile>
__device__ void finish_segment(const split_params& p, const row_work& work, const segment& s, const float* shared,
                               int& shared_arrivals) {
  constexpr int vectors = HeadSize / 4;
  constexpr int output_floats = Tile::kv_warps * Tile::query_rows * Tile::output_pitch;
  const float* const largest = shared + output_floats;
  const float* const sums = largest + Tile::kv_warps * Tile::query_rows;
  float* const slot = p.partials + s.slot(s.part);
  for (int i = threadIdx.x; i < s.lines * vectors; i += split_threads) {
    const int line = i / vectors, vector = i % vectors;
    partial all;
#pragma unroll
    for (int w = 0; w < Tile::kv_warps; ++w) {
      const int at = w * Tile::query_rows + line;
      all.add(*reinterpret_cast<const float4*>(shared + at * Tile::output_pitch + vector * 4), largest[at], sums[at]);
    }
    if (s.parts == 1) {
      write_output<T, HeadSize>(p, work, s, line, vector, all);
      continue;
    }
    float* const to = slot + line * Tile::slot_line;
    __stcg(reinterpret_cast<float4*>(to + vector * 4), all.weighted);
    if (vector == 0) __stcg(reinterpret_cast<float2*>(to + HeadSize), make_float2(all.largest, all.sum));
  }
  if (s.parts == 1) return;

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared_arrivals = atomicAdd(p.counters + s.counter, 1);
  __syncthreads();
  if (shared_arrivals != s.parts - 1) return;
  __threadfence();
  if (threadIdx.x == 0) p.counters[s.counter] = 0;
  for (int i = threadIdx.x; i < s.lines * vectors; i += split_threads) {
    const int line = i / vectors, vector = i % vectors;
    partial all;
    constexpr int batch = 8;  // parts whose loads are under way at once
    for (int first = 0; first < s.parts; first += batch) {
      float4 weighted[batch];
      float2 scales[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const float* const from = p.partials + s.slot(min(first + b, s.parts - 1)) + line * Tile::slot_line;
        weighted[b] = __ldcg(reinterpret_cast<const float4*>(from + vector * 4));
        scales[b] = __ldcg(reinterpret_cast<const float2*>(from + HeadSize));
      }
#pragma unroll
      for (int b = 0; b < batch; ++b)
        if (first + b < s.parts) all.add(weighted[b], scales[b].x, scales[b].y);
    }
    write_output<T, HeadSize>(p, work, s, line, vector, all);
  }
}

}  // namespace stepgraph::detail
