#pragma once

#include "examples/llama/skinny_matmul.hpp"

namespace stepgraph::llama::detail {

constexpr int tile_rows = 8;  // weights' lines of one tensor-core tile

__device__ __forceinline__ std::uint32_t pack_pair(float first, float second) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// What follows a product. `token_state` is what a thread needs of its token, `operand` of its token and a
// pair of rows; both are fetched while the product is under way, the former (and `early`, the latter) before
// the wait.

template <class Product>
struct skinny_epilogue;

template <>
struct skinny_epilogue<qkv_product> {
  static constexpr int row_tiles = 1;
  static constexpr bool early = true;
  struct token_state {
    std::int64_t place = 0;
    int position = 0;
    bool stores = false;
  };
  using operand = float2;

  __device__ static int row(const qkv_product&, int tile, int) { return tile * tile_rows; }
  __device__ static token_state begin(const qkv_product& p, int token) {
    const std::int64_t slot = __ldcg(p.out_cache_loc + token);
    return {.place = (slot >> p.page_shift) * p.cache.page_stride +
                     (slot & ((std::int64_t{1} << p.page_shift) - 1)) * p.cache.token_stride,
            .position = __ldcg(p.positions + token),
            .stores = __ldcg(p.causal_length + token) > 0};
  }
  __device__ static operand fetch(const qkv_product& p, const token_state& state, int, int tile, int pair) {
    const int at = tile * tile_rows + 2 * pair, head = at / p.head_size;
    if (head >= p.heads + p.kv_heads) return {1.0f, 0.0f};
    return reinterpret_cast<const float2*>(
        p.rope)[std::int64_t{state.position} * (p.head_size / 2) + at % p.head_size / 2];
  }
  __device__ static void finish(const qkv_product& p, const token_state& state, operand turn, bool there,
                                int token, int tile, int pair, const float2 (&sum)[row_tiles]) {
    const int at = tile * tile_rows + 2 * pair, head = at / p.head_size;
    const float a = sum[0].x, b = sum[0].y;
    const std::uint32_t turned = pack_pair(a * turn.x - b * turn.y, a * turn.y + b * turn.x);
    if (!there) return;
    if (head < p.heads) {
      const std::int64_t to = std::int64_t{token} * p.heads * p.head_size + at;
      *reinterpret_cast<std::uint32_t*>(p.query + to) = turned;
    } else if (state.stores) {
      const bool is_value = head >= p.heads + p.kv_heads;
      const int kv_head = head - p.heads - (is_value ? p.kv_heads : 0);
      bf16* const pages = static_cast<bf16*>(const_cast<void*>(is_value ? p.cache.values : p.cache.keys));
      *reinterpret_cast<std::uint32_t*>(pages + state.place + kv_head * p.cache.head_stride +
                                        at % p.head_size) = turned;
    }
  }
};

template <>
struct skinny_epilogue<residual_product> {
  static constexpr int row_tiles = 1;
  static constexpr bool early = false;
  struct token_state {
    std::int64_t copy = -1;  // element of the copy where the token's line begins
  };
  struct operand {
    float2 residual, gain;
  };

  __device__ static int row(const residual_product&, int tile, int) { return tile * tile_rows; }
  __device__ static token_state begin(const residual_product& p, int token) {
    const residual_copy& copy = p.copy;
    if (!copy.to || __ldcg(copy.causal_length + token) <= 0) return {};
    const int row = __ldcg(copy.row_of + token);
    if (__ldcg(copy.last_row + row) != token) return {};
    return {std::int64_t{copy.out_line ? __ldcg(copy.out_line + row) : row} * p.in.rows};
  }
  __device__ static operand fetch(const residual_product& p, const token_state&, int token, int tile,
                                  int pair) {
    const int at = tile * tile_rows + 2 * pair;
    return {.residual = *reinterpret_cast<const float2*>(p.residual + std::int64_t{token} * p.in.rows + at),
            .gain = *reinterpret_cast<const float2*>(p.gain + at)};
  }
  __device__ static void finish(const residual_product& p, const token_state& state, const operand& with,
                                bool there, int token, int tile, int pair, const float2 (&sum)[row_tiles]) {
    const float a = with.residual.x + sum[0].x, b = with.residual.y + sum[0].y;
    float squares = a * a + b * b;
    squares += __shfl_xor_sync(~0u, squares, 1);
    squares += __shfl_xor_sync(~0u, squares, 2);
    if (!there) return;
    const std::int64_t to = std::int64_t{token} * p.in.rows + tile * tile_rows + 2 * pair;
    *reinterpret_cast<float2*>(p.residual + to) = {a, b};
    if (state.copy >= 0)
      *reinterpret_cast<float2*>(p.copy.to + state.copy + tile * tile_rows + 2 * pair) = {a, b};
    *reinterpret_cast<std::uint32_t*>(p.x + to) = pack_pair(a * with.gain.x, b * with.gain.y);
    if (pair == 0) p.squares[std::int64_t{token} * (p.in.rows / tile_rows) + tile] = squares;
  }
};

template <>
struct skinny_epilogue<gated_product> {
  static constexpr int row_tiles = 2;
  static constexpr bool early = true;
  struct token_state {};
  struct operand {};

  __device__ static int row(const gated_product& p, int tile, int n) {
    return tile * tile_rows + n * (p.in.rows / 2);
  }
  __device__ static token_state begin(const gated_product&, int) { return {}; }
  __device__ static operand fetch(const gated_product&, const token_state&, int, int, int) { return {}; }
  __device__ static void finish(const gated_product& p, const token_state&, const operand&, bool there,
                                int token, int tile, int pair, const float2 (&sum)[row_tiles]) {
    if (!there) return;
    const float a = sum[0].x / (1.0f + expf(-sum[0].x)) * sum[1].x;
    const float b = sum[0].y / (1.0f + expf(-sum[0].y)) * sum[1].y;
    const std::int64_t to = std::int64_t{token} * (p.in.rows / 2) + tile * tile_rows + 2 * pair;
    *reinterpret_cast<std::uint32_t*>(p.out + to) = pack_pair(a, b);
  }
};

template <>
struct skinny_epilogue<plain_product> {
  static constexpr int row_tiles = 2;
  static constexpr bool early = true;
  struct token_state {};
  struct operand {};

  __device__ static int row(const plain_product&, int tile, int n) {
    return (tile * row_tiles + n) * tile_rows;
  }
  __device__ static token_state begin(const plain_product&, int) { return {}; }
  __device__ static operand fetch(const plain_product&, const token_state&, int, int, int) { return {}; }
  __device__ static void finish(const plain_product& p, const token_state&, const operand&, bool there,
                                int token, int tile, int pair, const float2 (&sum)[row_tiles]) {
    if (!there) return;
#pragma unroll
    for (int n = 0; n < row_tiles; ++n) {
      const int at = (tile * row_tiles + n) * tile_rows + 2 * pair;
      float* const to = p.out + std::int64_t{token} * p.in.rows + at;
      if (at < p.in.rows) to[0] = sum[n].x;
      if (at + 1 < p.in.rows) to[1] = sum[n].y;
    }
  }
};

}  // namespace stepgraph::llama::detail
