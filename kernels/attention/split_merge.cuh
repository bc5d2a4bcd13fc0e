#pragma once

#include "kernels/attention/mma.cuh"
#include "kernels/attention/split_plan.cuh"

namespace stepgraph::detail {

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

/// A lane's elements of one query row's weighted values; a warp holds the row.
template <int HeadSize>
struct lane_values {
  static constexpr int count = HeadSize / 32;
  float value[count] = {};

  __device__ void scale(float by) {
#pragma unroll
    for (float& each : value) each *= by;
  }
  __device__ void add(const lane_values& other, float weight) {
#pragma unroll
    for (int i = 0; i < count; ++i) value[i] += other.value[i] * weight;
  }
  __device__ static lane_values load(const float* row) {
    lane_values loaded;
    const float* const from = row + threadIdx.x % 32 * count;
    if constexpr (count == 4)
      *reinterpret_cast<float4*>(loaded.value) = *reinterpret_cast<const float4*>(from);
    else
      *reinterpret_cast<float2*>(loaded.value) = *reinterpret_cast<const float2*>(from);
    return loaded;
  }
  /// From and to a slot, past the first-level cache, which other multiprocessors do not keep coherent.
  __device__ static lane_values load_slot(const float* row) {
    lane_values loaded;
    const float* const from = row + threadIdx.x % 32 * count;
    if constexpr (count == 4)
      *reinterpret_cast<float4*>(loaded.value) = __ldcg(reinterpret_cast<const float4*>(from));
    else
      *reinterpret_cast<float2*>(loaded.value) = __ldcg(reinterpret_cast<const float2*>(from));
    return loaded;
  }
  __device__ void store_slot(float* row) const {
    float* const to = row + threadIdx.x % 32 * count;
    if constexpr (count == 4)
      __stcg(reinterpret_cast<float4*>(to), *reinterpret_cast<const float4*>(value));
    else
      __stcg(reinterpret_cast<float2*>(to), *reinterpret_cast<const float2*>(value));
  }
};

/// One query row's softmax so far: the largest logit (base 2), and the sum of weights and the weighted values
/// relative to it.
template <int HeadSize>
struct line_softmax {
  lane_values<HeadSize> weighted;
  float largest = -INFINITY;
  float sum = 0;

  /// Makes room for logits up to `other` and returns what the row's new reference is; 0 while nothing was
  /// seen.
  __device__ float raise(float other) {
    const float now = fmaxf(largest, other);
    if (now == -INFINITY) return 0;
    const float factor = exp2_fast(largest - now);
    weighted.scale(factor);
    sum *= factor;
    return largest = now;
  }
};

/// Writes a query row of the output, and the log-sum-exp. A warp does a row.
template <class T, int HeadSize>
__device__ void write_output(const split_params& p, const row_work& work, const segment& s, int line,
                             line_softmax<HeadSize> row) {
  const int group = p.group, lane = threadIdx.x % 32;
  const int packed = s.first_line + line, j = packed / group;
  const int head = s.kv_head * group + packed - j * group;
  const std::int64_t at = std::int64_t{work.first_token + j} * p.op.heads + head;
  const bool sees = row.sum > 0;
  float factor = 0;
  if (sees) {
    if (p.op.sink) {
      const float sink = p.op.sink[head] * log2_e, reference = row.raise(sink);
      row.sum += exp2_fast(sink - reference);
    }
    factor = __fdividef(1.0f, row.sum);
  }
  row.weighted.scale(factor);
  constexpr int count = lane_values<HeadSize>::count;
  std::uint32_t* const to =
      reinterpret_cast<std::uint32_t*>(static_cast<T*>(p.op.output) + at * HeadSize + lane * count);
  const float* const value = row.weighted.value;
  if constexpr (count == 4)
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(value[0], value[1]), pack<T>(value[2], value[3]));
  else
    *to = pack<T>(value[0], value[1]);
  if (p.op.log_sum_exp && lane == 0)
    p.op.log_sum_exp[at] = sees ? (row.largest + log2f(row.sum)) * ln_2 : -INFINITY;
}

/// Merges a unit's parts, in the order of the row's tokens, and writes its output. `Lines` query rows a warp
/// and `Parts` parts are loaded at once.
template <class T, int HeadSize, class Tile, int Lines, int Parts>
__device__ void merge_parts(const split_params& p, const row_work& work, const segment& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int first = warp; first < s.lines; first += split_warps * Lines) {
    line_softmax<HeadSize> row[Lines];
    const auto line_of = [&](int l) { return min(first + l * split_warps, s.lines - 1); };
#pragma unroll 1
    for (int round = 0; round < s.parts; round += 64) {
      const int parts = min(64, s.parts - round);
      float2 scale[Lines][2];  // of parts `round + lane` and 32 further
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const own = p.partials + s.slot(round + min(half * 32 + lane, parts - 1));
#pragma unroll
        for (int l = 0; l < Lines; ++l)
          scale[l][half] =
              __ldcg(reinterpret_cast<const float2*>(own + line_of(l) * Tile::slot_line + HeadSize));
      }
#pragma unroll 1
      for (int part = 0; part < parts; part += Parts) {
        lane_values<HeadSize> values[Parts][Lines];
#pragma unroll
        for (int i = 0; i < Parts; ++i) {
          if (part + i >= parts) break;
          const float* const from = p.partials + s.slot(round + part + i);
#pragma unroll
          for (int l = 0; l < Lines; ++l)
            values[i][l] = lane_values<HeadSize>::load_slot(from + line_of(l) * Tile::slot_line);
        }
        // the weights, while the first values are on their way
        if (part == 0) {
#pragma unroll
          for (int l = 0; l < Lines; ++l) {
            float most = fmaxf(scale[l][0].x, scale[l][1].x), sum = 0;
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
              most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
            const float reference = row[l].raise(most);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              scale[l][half].x = half * 32 + lane < parts ? exp2_fast(scale[l][half].x - reference) : 0.0f;
              sum += scale[l][half].x * scale[l][half].y;
            }
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
            row[l].sum += sum;
          }
        }
#pragma unroll
        for (int i = 0; i < Parts; ++i) {
          if (part + i >= parts) break;
#pragma unroll
          for (int l = 0; l < Lines; ++l) {
            const float weight =
                __shfl_sync(~0u, part + i < 32 ? scale[l][0].x : scale[l][1].x, (part + i) % 32);
            row[l].weighted.add(values[i][l], weight);
          }
        }
      }
    }
#pragma unroll
    for (int l = 0; l < Lines; ++l)
      if (first + l * split_warps < s.lines) write_output<T>(p, work, s, first + l * split_warps, row[l]);
  }
}

/// Joins the warps' softmaxes, then either writes the unit's output or leaves a partial result; the last
/// block to leave one merges them all and sets the unit's counter back. `shared` holds the warps' outputs
/// [kv_warps][query_rows][output_pitch], then their largest logits and their sums [kv_warps][query_rows]
/// each.
template <class T, int HeadSize, class Tile>
__device__ void finish_segment(const split_params& p, const row_work& work, const segment& s,
                               const float* shared, int& shared_arrivals) {
  constexpr int output_floats = Tile::kv_warps * Tile::query_rows * Tile::output_pitch;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* const largest = shared + output_floats;
  const float* const sums = largest + Tile::kv_warps * Tile::query_rows;
#pragma unroll 1
  for (int line = warp; line < s.lines; line += split_warps) {
    line_softmax<HeadSize> row;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < Tile::kv_warps; ++w) most = fmaxf(most, largest[w * Tile::query_rows + line]);
    const float reference = row.raise(most);
#pragma unroll
    for (int w = 0; w < Tile::kv_warps; ++w) {
      const int at = w * Tile::query_rows + line;
      const float weight = exp2_fast(largest[at] - reference);
      row.weighted.add(lane_values<HeadSize>::load(shared + at * Tile::output_pitch), weight);
      row.sum += weight * sums[at];
    }
    if (s.parts == 1) {
      write_output<T>(p, work, s, line, row);
      continue;
    }
    float* const to = p.partials + s.slot(s.part) + line * Tile::slot_line;
    row.weighted.store_slot(to);
    if (lane == 0) __stcg(reinterpret_cast<float2*>(to + HeadSize), make_float2(row.largest, row.sum));
  }
  if (s.parts == 1) return;

  // one thread's fence covers what the barrier ordered before it
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared_arrivals = atomicAdd(p.counters + s.counter, 1);
    __threadfence();
  }
  __syncthreads();
  if (shared_arrivals != s.parts - 1) return;
  if (threadIdx.x == 0) p.counters[s.counter] = 0;
  if (s.lines <= split_warps)
    merge_parts<T, HeadSize, Tile, 1, 18>(p, work, s);
  else
    merge_parts<T, HeadSize, Tile, 4, 4>(p, work, s);
}

}  // namespace stepgraph::detail
