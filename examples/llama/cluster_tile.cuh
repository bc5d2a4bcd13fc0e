#pragma once

#include "examples/llama/cluster_load.cuh"

namespace stepgraph::llama::detail {

/// A warp's 16 query rows against its 16 keys of each tile, in tensor-core layout.
template <int HeadSize>
struct query_tile {
  static constexpr int line_bytes = HeadSize * 2;
  std::uint32_t query[HeadSize / 16][4];
  float weighted[HeadSize / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  int end[2];  // positions that the thread's two rows see

  __device__ void load(const paged_attention_params& p, const row_shape& shape, int first_line) {
    const int lane = threadIdx.x % 32, group = p.heads / p.kv_heads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = first_line + half * 8 + lane / 4, j = line / group;
      const bool there = j < shape.tokens;
      end[half] = there ? shape.base() + j + 1 : 0;
      const bf16* const from =
          static_cast<const bf16*>(p.query) +
          (std::int64_t{shape.first_token + (there ? j : 0)} * p.heads + blockIdx.x * group + line % group) *
              HeadSize +
          lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < HeadSize / 16; ++step) {
        query[step][half] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16) : 0;
        query[step][half + 2] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16 + 8) : 0;
      }
    }
  }

  /// `keys`: shared address of the warp's 16 lines; `first`: position of the first of them.
  __device__ void attend(std::uint32_t keys, std::uint32_t values, int first, float scale) {
    const int lane = threadIdx.x % 32;
    float scores[2][4] = {};
    const std::uint32_t key_line = keys + (lane / 16 * 8 + lane % 8) * line_bytes;
#pragma unroll
    for (int step = 0; step < HeadSize / 16; ++step) {
      std::uint32_t b[4];
      load_matrices(b, key_line + swizzled(step * 2 + lane / 8 % 2, lane) * 16);
      multiply_add<bf16>(scores[0], query[step], b[0], b[1]);
      multiply_add<bf16>(scores[1], query[step], b[2], b[3]);
    }
    float now[2] = {largest[0], largest[1]}, factor[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool seen = first + n * 8 + lane % 4 * 2 + e % 2 < end[e / 2];
        scores[n][e] = seen ? scores[n][e] * scale : -INFINITY;
        now[e / 2] = fmaxf(now[e / 2], scores[n][e]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 1));
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 2));
      const float from = now[half] == -INFINITY ? 0.0f : now[half];
      factor[half] = exp2_fast(largest[half] - from);
      largest[half] = now[half];
      now[half] = from;
      sum[half] *= factor[half];
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = exp2_fast(scores[n][e] - now[e / 2]);
        sum[e / 2] += scores[n][e];
      }
    const std::uint32_t a[4] = {
        pack<bf16>(scores[0][0], scores[0][1]), pack<bf16>(scores[0][2], scores[0][3]),
        pack<bf16>(scores[1][0], scores[1][1]), pack<bf16>(scores[1][2], scores[1][3])};
    const std::uint32_t value_line = values + (lane / 8 % 2 * 8 + lane % 8) * line_bytes;
#pragma unroll
    for (int n = 0; n < HeadSize / 16; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(b, value_line + swizzled(n * 2 + lane / 16, lane) * 16);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        float(&c)[4] = weighted[2 * n + tile];
#pragma unroll
        for (int e = 0; e < 4; ++e) c[e] *= factor[e / 2];
        multiply_add<bf16>(c, a, b[2 * tile], b[2 * tile + 1]);
      }
    }
  }
};

}  // namespace stepgraph::llama::detail
