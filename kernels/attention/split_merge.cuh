#pragma once

#include "kernels/attention/cluster.cuh"
#include "kernels/attention/mma.cuh"
#include "kernels/attention/split_segments.cuh"

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
  /// From a slot, past the first-level cache.
  __device__ static lane_values load_slot(const float* row) {
    lane_values loaded;
    const float* const from = row + threadIdx.x % 32 * count;
    if constexpr (count == 4)
      *reinterpret_cast<float4*>(loaded.value) = __ldcg(reinterpret_cast<const float4*>(from));
    else
      *reinterpret_cast<float2*>(loaded.value) = __ldcg(reinterpret_cast<const float2*>(from));
    return loaded;
  }
  /// To another block's shared memory.
  __device__ void send(std::uint32_t row, std::uint32_t barrier) const {
    const std::uint32_t to = row + threadIdx.x % 32 * count * 4;
    if constexpr (count == 4) {
      send_remote(to, value[0], value[1], barrier);
      send_remote(to + 8, value[2], value[3], barrier);
    } else {
      send_remote(to, value[0], value[1], barrier);
    }
  }
  /// To a slot, past the first-level cache, which multiprocessors do not keep coherent between them.
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
  const int packed = s.first_line + line, j = p.token_of(packed);
  const int head = s.kv_head * group + packed - j * group;
  const std::int64_t at = std::int64_t{work.first_token + j} * p.op.heads + head;
  const bool sees = row.sum != 0;  // a NaN, too
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

/// Merges a line's parts, in the order of the row's tokens, and writes its output; eight parts at a time, which are on
/// their way together.
template <class T, int HeadSize, class Tile>
__device__ void merge_line(const split_params& p, const row_work& work, const segment& s, int line) {
  constexpr int at_once = 8;
  line_softmax<HeadSize> row;
#pragma unroll 1
  for (int first = 0; first < s.parts; first += at_once) {
    lane_values<HeadSize> values[at_once];
    float2 scale[at_once];
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      scale[i] = make_float2(-INFINITY, 0);
      if (first + i >= s.parts) continue;
      const float* const from = p.partials + s.slot(first + i) + line * Tile::slot_line;
      values[i] = lane_values<HeadSize>::load_slot(from);
      scale[i] = __ldcg(reinterpret_cast<const float2*>(from + HeadSize));
    }
#pragma unroll
    for (const float2& each : scale) most = fmaxf(most, each.x);
    const float reference = row.raise(most);
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const float weight = exp2_fast(scale[i].x - reference);
      row.weighted.add(values[i], weight);
      row.sum += weight * scale[i].y;
    }
  }
  write_output<T>(p, work, s, line, row);
}

/// Merges a unit's parts, in the order of the row's tokens, and writes its output. Parts come through shared
/// memory, as many at once as fit, so that all are on their way together in a few instructions: this code
/// runs once a unit, and fetching it costs more than running it. A warp does a row. Few lines go without shared memory.
template <class T, int HeadSize, class Tile>
__device__ void merge_parts(const split_params& p, const row_work& work, const segment& s, float* shared) {
  constexpr int line_vectors = Tile::slot_line / 4, line_bytes = Tile::slot_line * 4;
  const int warp = threadIdx.x / 32;
  if (s.lines <= Tile::warps) {
    if (warp < s.lines) merge_line<T, HeadSize, Tile>(p, work, s, warp);
    return;
  }
  const int at_once = min(s.parts, Tile::shared_bytes / (Tile::warps * line_bytes));  // parts
  const int rows = min(s.lines, Tile::shared_bytes / (at_once * line_bytes) / Tile::warps * Tile::warps);
#pragma unroll 1
  for (int first_line = 0; first_line < s.lines; first_line += rows) {
    const int lines = min(rows, s.lines - first_line);
    const int vectors = lines * line_vectors;  // of a part, side by side
    // note: several rounds of parts only where one warp's rows are all that fit, each warp then has one row
    line_softmax<HeadSize> kept;
#pragma unroll 1
    for (int first_part = 0; first_part < s.parts; first_part += at_once) {
      const int parts = min(at_once, s.parts - first_part);
      __syncthreads();  // what was in shared memory has been read
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        const float* const from = p.partials + s.slot(first_part + part) + first_line * Tile::slot_line;
        const std::uint32_t to = shared_address(shared + part * lines * Tile::slot_line);
#pragma unroll 1
        for (int i = threadIdx.x; i < vectors; i += Tile::threads)
          copy_async(to + i * 16, from + i * 4, true);
      }
      commit_copies();
      wait_copies<0>();
      __syncthreads();
#pragma unroll 1
      for (int line = warp; line < lines; line += Tile::warps) {
        line_softmax<HeadSize> row;
        if (parts < s.parts) row = kept;
        const float* from = shared + line * Tile::slot_line;
        float most = -INFINITY;
        for (int part = threadIdx.x % 32; part < parts; part += 32)
          most = fmaxf(most, from[part * lines * Tile::slot_line + HeadSize]);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
          most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
        const float reference = row.raise(most);
#pragma unroll 4
        for (int part = 0; part < parts; ++part, from += lines * Tile::slot_line) {
          const float2 scale = *reinterpret_cast<const float2*>(from + HeadSize);
          const float weight = exp2_fast(scale.x - reference);
          row.weighted.add(lane_values<HeadSize>::load(from), weight);
          row.sum += weight * scale.y;
        }
        if (first_part + parts == s.parts) write_output<T>(p, work, s, first_line + line, row);
        kept = row;
      }
    }
  }
}

/// Joins the warps' softmaxes, then either writes the unit's output or leaves a partial result; the last
/// block to leave one merges them all and sets the unit's counter back. `shared` holds the warps' outputs
/// [kv_warps][query_rows][output_pitch], then their largest logits and their sums [kv_warps][query_rows]
/// each.
template <class T, int HeadSize, class Tile>
__device__ void finish_segment(const split_params& p, const row_work& work, const segment& s, float* shared,
                               float* received, std::uint64_t& received_barrier, int& shared_arrivals) {
  constexpr int output_floats = Tile::kv_warps * Tile::query_rows * Tile::output_pitch;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* const largest = shared + output_floats;
  const float* const sums = largest + Tile::kv_warps * Tile::query_rows;
  const bool leads = Tile::clusters && s.leads, sends = Tile::clusters && s.sends;
  if (leads && threadIdx.x == 0)
    expect_bytes(shared_address(&received_barrier), s.lines * (HeadSize + 2) * int{sizeof(float)});
#pragma unroll Tile::query_rows == 16 ? 1 : 2
  for (int line = warp; line < s.lines; line += Tile::warps) {
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
    if (sends) {
      const std::uint32_t to = remote_address(shared_address(received + line * Tile::slot_line), 0);
      const std::uint32_t barrier = remote_address(shared_address(&received_barrier), 0);
      row.weighted.send(to, barrier);
      if (lane == 0) send_remote(to + HeadSize * 4, row.largest, row.sum, barrier);
      continue;
    }
    if (leads) {
      wait_received(shared_address(&received_barrier));
      const float* const from = received + line * Tile::slot_line;
      const float2 scale = *reinterpret_cast<const float2*>(from + HeadSize);
      const float weight = exp2_fast(scale.x - row.raise(scale.x));
      row.weighted.add(lane_values<HeadSize>::load(from), weight);
      row.sum += weight * scale.y;
    }
    if (s.parts == 1) {
      write_output<T>(p, work, s, line, row);
      continue;
    }
    float* const to = p.partials + s.slot(s.part) + line * Tile::slot_line;
    row.weighted.store_slot(to);
    if (lane == 0) __stcg(reinterpret_cast<float2*>(to + HeadSize), make_float2(row.largest, row.sum));
  }
  if (s.parts == 1 || sends) return;

  // one thread's release covers what the barrier ordered before it
  __syncthreads();
  if (threadIdx.x == 0) {
    shared_arrivals = count_arrival(p.counters + s.counter);
  }
  __syncthreads();
  if (shared_arrivals != s.parts - 1) return;
  if (threadIdx.x == 0) p.counters[s.counter] = 0;
  merge_parts<T, HeadSize, Tile>(p, work, s, shared);
}

}  // namespace stepgraph::detail
