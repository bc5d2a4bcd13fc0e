#pragma once

#include "kernels/attention/split_merge.cuh"
#include "kernels/attention/warpgroup_tile.cuh"

namespace stepgraph::detail {

/// What a multiplying warpgroup has of its 64 query rows, and where it leaves that. A thread holds rows lane
/// / 4 and lane / 4 + 8 of its warp's 16, of every eight columns 2 (lane % 4) and the next.
template <class T, int HeadSize, class Tile>
struct warpgroup_rows {
  const split_params& p;
  warpgroup_held<Tile>& held;
  int warpgroup;  // among those that multiply
  float unit;     // what a score is in base-2 logits
  float weighted[HeadSize / 8][4];
  float largest[2], sum[2];  // scores; of this thread's columns
  std::int32_t end[2];       // of the positions that the rows see

  __device__ int line(int half) const {
    return warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + half * 8 + threadIdx.x % 32 / 4;
  }

  /// Makes each row's sum and largest logit (base 2) the whole row's, in all lanes that hold it.
  __device__ void settle() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
      largest[half] *= unit;
    }
  }

  /// Of four lanes with four words each, the first gets the first words of all, and so on.
  __device__ static void transpose_quad(std::uint32_t (&words)[4]) {
    const unsigned quad = 0xfu << (threadIdx.x % 32 & 28);
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      const bool upper = threadIdx.x & distance;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i & distance) continue;
        const std::uint32_t got = __shfl_xor_sync(quad, upper ? words[i] : words[i + distance], distance);
        (upper ? words[i] : words[i + distance]) = got;
      }
    }
  }

  __device__ void write_rows(const row_work& work, const segment& s) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (line(half) >= s.lines) continue;
      const int packed = s.first_line + line(half), j = packed / p.group;
      const int head = s.kv_head * p.group + packed - j * p.group;
      const std::int64_t at = std::int64_t{work.first_token + j} * p.op.heads + head;
      const bool sees = sum[half] != 0;  // a NaN, too
      float factor = 0, reference = largest[half], total = sum[half];
      if (sees) {
        float scale = 1;
        if (p.op.sink) {
          const float sink = p.op.sink[head] * log2_e;
          reference = fmaxf(reference, sink);
          scale = exp2_fast(largest[half] - reference);
          total = total * scale + exp2_fast(sink - reference);
        }
        factor = __fdividef(scale, total);
      }
      T* const to = static_cast<T*>(p.op.output) + at * HeadSize + threadIdx.x % 4 * 8;
#pragma unroll
      for (int n = 0; n < HeadSize / 8; n += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = pack<T>(weighted[n + i][2 * half] * factor, weighted[n + i][2 * half + 1] * factor);
        transpose_quad(words);
        *reinterpret_cast<uint4*>(to + n * 8) = make_uint4(words[0], words[1], words[2], words[3]);
      }
      if (p.op.log_sum_exp && threadIdx.x % 4 == 0)
        p.op.log_sum_exp[at] = sees ? (reference + log2f(total)) * ln_2 : -INFINITY;
    }
  }

  /// Leaves a partial result, past the first-level cache, which multiprocessors do not keep coherent.
  __device__ void leave_part(const segment& s) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (line(half) >= s.lines) continue;
      float* const to = p.partials + s.slot(s.part) + line(half) * Tile::slot_line;
#pragma unroll
      for (int n = 0; n < HeadSize / 8; ++n)
        __stcg(reinterpret_cast<float2*>(to + n * 8 + threadIdx.x % 4 * 2),
               make_float2(weighted[n][2 * half], weighted[n][2 * half + 1]));
      if (threadIdx.x % 4 == 0)
        __stcg(reinterpret_cast<float2*>(to + HeadSize), make_float2(largest[half], sum[half]));
    }
  }

  /// Barrier of all multiplying warps.
  __device__ static void synchronize() {
    asm volatile("bar.sync 1, %0;" ::"n"(128 * Tile::consumers) : "memory");
  }

  /// Writes the unit's output, or leaves a partial result; the last block to leave one merges them all and
  /// sets the unit's counter back.
  __device__ void finish(const row_work& work, const segment& s) {
    settle();
    if (s.parts == 1) return write_rows(work, s);
    leave_part(s);
    // one thread's release covers what the barrier ordered before it
    synchronize();
    if (threadIdx.x == 128) {
      held.arrivals = count_arrival(p.counters + s.counter);
    }
    synchronize();
    if (held.arrivals != s.parts - 1) return;
    if (threadIdx.x == 128) p.counters[s.counter] = 0;
#pragma unroll 1
    for (int line = threadIdx.x / 32 - 4; line < s.lines; line += 4 * Tile::consumers) {
      line_softmax<HeadSize> row;
#pragma unroll 2
      for (int part = 0; part < s.parts; ++part) {
        const float* const from = p.partials + s.slot(part) + line * Tile::slot_line;
        const lane_values<HeadSize> values = lane_values<HeadSize>::load_slot(from);
        const float2 scale = __ldcg(reinterpret_cast<const float2*>(from + HeadSize));
        const float weight = exp2_fast(scale.x - row.raise(scale.x));
        row.weighted.add(values, weight);
        row.sum += weight * scale.y;
      }
      write_output<T>(p, work, s, line, row);
    }
  }
};

}  // namespace stepgraph::detail
