#pragma once

#include "kernels/attention/split_merge.cuh"
#include "kernels/attention/token_view.hpp"

namespace stepgraph::detail {

/// One warp's 16 query rows against the keys of its own: running softmax and weighted values in tensor-core
/// layout. A thread holds rows lane / 4 and lane / 4 + 8.
template <class T, int HeadSize, class Tile>
struct warp_attention {
  static constexpr int steps = HeadSize / 16;
  static constexpr int key_groups = Tile::warp_tokens / 16;
  std::uint32_t query[steps][4];
  float weighted[HeadSize / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};  // base-2 logits over `unit`
  float unit;
  int lane;  // of the products: as the compiler does not know it, nothing of theirs delays the first copies
  float sum[2] = {0, 0};  // of this thread's columns

  __device__ void load_query(const split_params& p, const row_work& work, const segment& s, int query_warp) {
    const int lane = threadIdx.x % 32, group = p.group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = query_warp * 16 + half * 8 + lane / 4;
      const bool there = line < s.lines;
      const int packed = s.first_line + (there ? line : 0), j = p.token_of(packed);
      const int token = work.first_token + j;
      const T* const from =
          static_cast<const T*>(p.op.query) +
          (std::int64_t{token} * p.op.heads + s.kv_head * group + packed - j * group) * HeadSize +
          lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        query[step][half] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16) : 0;
        query[step][half + 2] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16 + 8) : 0;
      }
    }
  }

  /// scores = query . keys of this warp's tokens in the stage.
  __device__ void score(std::uint32_t keys, int first_key, float (&scores)[Tile::warp_tokens / 8][4]) const {
    const std::uint32_t line = keys + (first_key + lane / 16 * 8 + lane % 8) * Tile::line_bytes;
#pragma unroll
    for (auto& each : scores)
#pragma unroll
      for (float& value : each) value = 0;
#pragma unroll
    for (int step = 0; step < steps; ++step)
#pragma unroll
      for (int g = 0; g < key_groups; ++g) {
        std::uint32_t b[4];
        load_matrices(b, line + g * 16 * Tile::line_bytes + swizzle(step * 2 + lane / 8 % 2, lane) * 16);
        multiply_add<T>(scores[2 * g], query[step], b[0], b[1]);
        multiply_add<T>(scores[2 * g + 1], query[step], b[2], b[3]);
      }
  }

  /// Hides what these rows do not see. `position` is that of this warp's first key, `live` its tokens that
  /// are there, `first_column` this thread's first among them. note: few tiles need it, so nothing is kept
  /// for it
  __device__ static void mask(const split_params& p, const row_work& work, const segment& s, int query_warp,
                              float (&scores)[Tile::warp_tokens / 8][4], int position, std::uint64_t live,
                              int first_column) {
    std::uint64_t seen[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = query_warp * 16 + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
      const int j = p.token_of(s.first_line + (line < s.lines ? line : 0));
      const token_view view = token_view::make(
          work.base(), j, p.op.window, p.op.tree_mask ? p.op.tree_mask + work.first_token + j : nullptr);
      seen[half] = (view.sees_64(position) & live) >> first_column;
    }
#pragma unroll
    for (int n = 0; n < Tile::warp_tokens / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!(seen[e / 2] >> (n * 8 + e % 2) & 1)) scores[n][e] = -INFINITY;
  }

  __device__ void softmax(float (&scores)[Tile::warp_tokens / 8][4]) {
    float now[2] = {largest[0], largest[1]}, factor[2];
#pragma unroll
    for (int n = 0; n < Tile::warp_tokens / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) now[e / 2] = fmaxf(now[e / 2], scores[n][e]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 1));
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 2));
      const float from = now[half] == -INFINITY ? 0.0f : now[half];
      factor[half] = exp2_fast((largest[half] - from) * unit);
      largest[half] = now[half];
      now[half] = -from * unit;
    }
    if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (auto& each : weighted)
#pragma unroll
        for (int e = 0; e < 4; ++e) each[e] *= factor[e / 2];
      sum[0] *= factor[0];
      sum[1] *= factor[1];
    }
#pragma unroll
    for (int n = 0; n < Tile::warp_tokens / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = exp2_fast(fmaf(scores[n][e], unit, now[e / 2]));
        sum[e / 2] += scores[n][e];
      }
  }

  /// weighted += weights . values of this warp's tokens in the stage.
  __device__ void weigh(std::uint32_t values, int first_key,
                        const float (&weights)[Tile::warp_tokens / 8][4]) {
    const std::uint32_t line = values + (first_key + lane / 8 % 2 * 8 + lane % 8) * Tile::line_bytes;
#pragma unroll
    for (int g = 0; g < key_groups; ++g) {
      const std::uint32_t a[4] = {pack<T>(weights[2 * g][0], weights[2 * g][1]),
                                  pack<T>(weights[2 * g][2], weights[2 * g][3]),
                                  pack<T>(weights[2 * g + 1][0], weights[2 * g + 1][1]),
                                  pack<T>(weights[2 * g + 1][2], weights[2 * g + 1][3])};
#pragma unroll
      for (int n = 0; n < HeadSize / 16; ++n) {
        std::uint32_t b[4];
        load_matrices_transposed(b, line + g * 16 * Tile::line_bytes + swizzle(n * 2 + lane / 16, lane) * 16);
        multiply_add<T>(weighted[2 * n], a, b[0], b[1]);
        multiply_add<T>(weighted[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  /// Leaves the warp's rows, of the tile's first `lines`, for `finish_segment`.
  __device__ void store(float* shared, int query_warp, int kv_warp, int lines) {
    constexpr int rows = Tile::kv_warps * Tile::query_rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
      const int line = query_warp * 16 + half * 8 + lane / 4, at = kv_warp * Tile::query_rows + line;
      if (line >= lines) continue;
#pragma unroll
      for (int n = 0; n < HeadSize / 8; ++n)
        *reinterpret_cast<float2*>(shared + at * Tile::output_pitch + n * 8 + lane % 4 * 2) =
            make_float2(weighted[n][2 * half], weighted[n][2 * half + 1]);
      if (lane % 4 == 0) {
        shared[rows * Tile::output_pitch + at] = largest[half] * unit;
        shared[rows * Tile::output_pitch + rows + at] = sum[half];
      }
    }
  }
};

}  // namespace stepgraph::detail
