#pragma once

#include <algorithm>
#include <cstdlib>

#include "examples/llama/skinny_matmul.hpp"
#include "examples/llama/successor.cuh"
#include "graphs/error.hpp"
#include "kernels/attention/mma.cuh"
#include "kernels/launch.cuh"

namespace stepgraph::llama::detail {

using stepgraph::detail::commit_copies;
using stepgraph::detail::copy_async;
using stepgraph::detail::multiply_add;
using stepgraph::detail::shared_address;
using stepgraph::detail::wait_copies;

constexpr int tile_rows = 8;       // weights' lines of one tensor-core tile
constexpr int block_columns = 32;  // columns that one 16-byte load of each lane covers
constexpr int max_split = 8;       // warps that share a tile's columns

/// How a product is cut; all of it from the shape, so that sums do not depend on the tokens.
struct skinny_cut {
  int split = 1;   // warps that share a tile, each with its own columns
  int teams = 1;   // tiles of a block at a time
  int stages = 1;  // batches of weights that a warp has room for
  int tiles = 0;   // of the matrix
};

template <class Product>
struct skinny_params {
  Product product;
  skinny_cut cut;
};

__device__ __forceinline__ std::uint32_t pack_pair(float first, float second) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// What follows a product. `token_state` is what a thread needs of its token, `operand` of its token and a pair of
// rows; both are fetched while the product is under way, the former (and `early`, the latter) before the wait.

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
  struct token_state {};
  struct operand {
    float2 residual, gain;
  };

  __device__ static int row(const residual_product&, int tile, int) { return tile * tile_rows; }
  __device__ static token_state begin(const residual_product&, int) { return {}; }
  __device__ static operand fetch(const residual_product& p, const token_state&, int token, int tile,
                                  int pair) {
    const int at = tile * tile_rows + 2 * pair;
    return {.residual = *reinterpret_cast<const float2*>(p.residual + std::int64_t{token} * p.in.rows + at),
            .gain = *reinterpret_cast<const float2*>(p.gain + at)};
  }
  __device__ static void finish(const residual_product& p, const token_state&, const operand& with,
                                bool there, int token, int tile, int pair, const float2 (&sum)[row_tiles]) {
    const float a = with.residual.x + sum[0].x, b = with.residual.y + sum[0].y;
    float squares = a * a + b * b;
    squares += __shfl_xor_sync(~0u, squares, 1);
    squares += __shfl_xor_sync(~0u, squares, 2);
    if (!there) return;
    const std::int64_t to = std::int64_t{token} * p.in.rows + tile * tile_rows + 2 * pair;
    *reinterpret_cast<float2*>(p.residual + to) = {a, b};
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

/// 1 / sqrt(mean + epsilon) of a token's squares, by the four lanes that share it.
__device__ __forceinline__ float norm_scale(const skinny_input& in, std::int64_t line) {
  if (!in.squares) return 1.0f;
  const int vectors = in.columns / tile_rows / 4;
  const auto* const squares = reinterpret_cast<const float4*>(in.squares + line * (in.columns / tile_rows));
  float sum = 0.0f;
#pragma unroll 1
  for (int first = threadIdx.x % 4; first < vectors; first += 32) {
    float4 each[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      each[i] = first + 4 * i < vectors ? squares[first + 4 * i] : float4{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += (each[i].x + each[i].y) + (each[i].z + each[i].w);
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return rsqrtf(__fdividef(sum, in.columns) + in.epsilon);
}

/// A warp's walk over its tiles' columns, a batch of `Depth` column blocks after another.
struct skinny_walk {
  int tile, batch;

  __device__ void step(int batches, int tile_step) {
    if (++batch == batches) {
      batch = 0;
      tile += tile_step;
    }
  }
};

constexpr int depth = 3;  // column blocks that a warp fetches together

/// Batches that a warp has under way.
template <class Product>
constexpr int stages = skinny_epilogue<Product>::row_tiles == 1 ? 4 : 2;

// grid: what the GPU holds, at most a block for each `teams` tiles; groups of TokenTiles * 8 tokens
// a block's first warps multiply: each team of `split` warps takes a tile of rows, each warp its share of the
// columns. Its last warps, one for 8 tokens, add what the warps of a team have and finish the tile meanwhile
template <class Product, int TokenTiles>
__global__ void __launch_bounds__((max_split + TokenTiles) * 32)
    skinny_kernel(const __grid_constant__ skinny_params<Product> p) {
  using epilogue = skinny_epilogue<Product>;
  constexpr int n_tiles = epilogue::row_tiles, m_tiles = (TokenTiles + 1) / 2;
  constexpr int part_size = n_tiles * TokenTiles * 32, batch_size = n_tiles * depth * 32;
  extern __shared__ uint4 shared[];  // weights [warps, stages, batch], then sums [2 rounds, warps, part]
  allow_successor();
  const skinny_input& in = p.product.in;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = p.cut.split, teams = p.cut.teams;
  const int warps = split * teams, tiles = p.cut.tiles, tile_step = gridDim.x * teams;
  const int rounds = (tiles - static_cast<int>(blockIdx.x) * teams + tile_step - 1) / tile_step;
  const int first_token = blockIdx.y * TokenTiles * 8;
  float2* const partial = reinterpret_cast<float2*>(shared + warps * p.cut.stages * batch_size);

  if (warp < warps) {
    const int team = warp / split, part = warp % split, first_tile = blockIdx.x * teams + team;
    const int column_blocks = in.columns / block_columns, share = (column_blocks + split - 1) / split;
    const int begin = min(part * share, column_blocks), end = min(begin + share, column_blocks);
    const int batches = (share + depth - 1) / depth;
    uint4* const ring =
        shared + warp * p.cut.stages * batch_size + lane;  // a lane reads what it has fetched itself
    skinny_walk ahead{first_tile, 0}, walk{first_tile, 0};
    const auto load = [&](int stage) {
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        const int row = epilogue::row(p.product, ahead.tile, n) + lane / 4;
        const bool there = ahead.tile < tiles && row < in.rows;
        const bf16* const from = in.weight + std::int64_t{row} * in.columns + lane % 4 * 8;
#pragma unroll
        for (int d = 0; d < depth; ++d) {
          const int block = begin + ahead.batch * depth + d;
          if (stage < p.cut.stages)
            copy_async(shared_address(ring + stage * batch_size + (n * depth + d) * 32),
                       from + block * block_columns, there && block < end);
        }
      }
      commit_copies();
      ahead.step(batches, tile_step);
    };
#pragma unroll
    for (int stage = 0; stage < stages<Product>; ++stage) load(stage);
    wait_for_predecessor();

    const bf16* x[TokenTiles];
#pragma unroll
    for (int t = 0; t < TokenTiles; ++t) {
      const int token = first_token + t * 8 + lane / 4;
      const bool there = token < in.tokens;
      const std::int64_t line = there && in.source ? in.source[token] : token;
      x[t] = there ? in.x + line * in.columns + lane % 4 * 8 : nullptr;
    }
    float sum[n_tiles][m_tiles][4] = {};
    for (int round = 0, stage = 0; round < rounds;) {
      wait_copies<stages<Product> - 1>();
      constexpr int together = TokenTiles <= 2 ? depth : 1;  // column blocks whose inputs are fetched at once
#pragma unroll
      for (int group = 0; group < depth; group += together) {
        uint4 inputs[together][2 * m_tiles];
#pragma unroll
        for (int d = 0; d < together; ++d)
#pragma unroll
          for (int t = 0; t < 2 * m_tiles; ++t) {
            const int block = begin + walk.batch * depth + group + d;
            inputs[d][t] = make_uint4(0, 0, 0, 0);
            if (t < TokenTiles && x[t % TokenTiles] && block < end)
              inputs[d][t] = *reinterpret_cast<const uint4*>(x[t % TokenTiles] + block * block_columns);
          }
          // note: both sides take the columns in the same order, which need not be theirs in memory
#pragma unroll
        for (int d = 0; d < together; ++d)
#pragma unroll
          for (int n = 0; n < n_tiles; ++n) {
            const uint4 b = ring[stage * batch_size + (n * depth + group + d) * 32];
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
              const uint4 &low = inputs[d][2 * m], &high = inputs[d][2 * m + 1];
              const std::uint32_t a0[4] = {low.x, high.x, low.y, high.y},
                                  a1[4] = {low.z, high.z, low.w, high.w};
              multiply_add<bf16>(sum[n][m], a0, b.x, b.y);
              multiply_add<bf16>(sum[n][m], a1, b.z, b.w);
            }
          }
      }
      const bool last = walk.batch + 1 == batches;
      walk.step(batches, tile_step);
      load(stage);
      stage = stage + 1 == stages<Product> ? 0 : stage + 1;
      if (!last) continue;
      float2* const mine = partial + (round % 2 * warps + warp) * part_size + lane;
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int t = 0; t < TokenTiles; ++t) {
          float(&c)[4] = sum[n][t / 2];
          mine[(n * TokenTiles + t) * 32] = {c[t % 2 * 2], c[t % 2 * 2 + 1]};
          c[t % 2 * 2] = c[t % 2 * 2 + 1] = 0.0f;
        }
      __syncthreads();
      ++round;
    }
    return;
  }

  const int group = warp - warps, token = first_token + group * 8 + lane / 4, pair = lane % 4;
  const bool there = token < in.tokens;
  const int safe = there ? token : 0;
  const auto state = epilogue::begin(p.product, safe);
  typename epilogue::operand operand{};
  if (epilogue::early)
    operand = epilogue::fetch(p.product, state, safe, min(blockIdx.x * teams, tiles - 1), pair);
  wait_for_predecessor();
  const float scale = norm_scale(in, in.source ? in.source[safe] : safe);
  for (int round = 0; round < rounds; ++round) {
    const int first_tile = blockIdx.x * teams + round * tile_step;
    if (!epilogue::early || round > 0)
      operand = epilogue::fetch(p.product, state, safe, min(first_tile, tiles - 1), pair);
    __syncthreads();
    for (int team = 0; team < teams; ++team) {
      const int tile = first_tile + team;
      if (tile >= tiles) break;
      if (team > 0) operand = epilogue::fetch(p.product, state, safe, tile, pair);
      const float2* const parts =
          partial + (round % 2 * warps + team * split) * part_size + group * 32 + lane;
      float2 sum[n_tiles];
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        sum[n] = {0.0f, 0.0f};
#pragma unroll
        for (int part = 0; part < max_split; ++part) {
          // note: a select, so that all loads are under way at once
          const float2 more = parts[part < split ? part * part_size + n * TokenTiles * 32 : 0];
          sum[n].x += part < split ? more.x : 0.0f;
          sum[n].y += part < split ? more.y : 0.0f;
        }
        sum[n].x *= scale;
        sum[n].y *= scale;
      }
      epilogue::finish(p.product, state, operand, there, token, tile, pair, sum);
    }
  }
}

inline int environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

template <class Product>
skinny_cut cut_of(const skinny_input& in, int multiprocessors) {
  const int rows = skinny_epilogue<Product>::row_tiles * tile_rows,
            column_blocks = in.columns / block_columns;
  skinny_cut cut{.tiles = (in.rows + rows - 1) / rows};
  const bool many = cut.tiles >= multiprocessors * 16 && column_blocks <= 24;
  cut.split = many ? 1 : std::min(environment("SKINNY_SPLIT", 6), (column_blocks + 2) / 3);
  if (column_blocks > 24) cut.split = max_split;
  cut.teams = many ? max_split : 1;
  return cut;
}

template <class Product, int TokenTiles>
void launch_skinny(stream_ref at, const char* name, const Product& product) {
  int multiprocessors = 0;
  STEPGRAPH_CUDA_TRY(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, at.where().ordinal()));
  skinny_params<Product> p{product, cut_of<Product>(product.in, multiprocessors)};
  const int warps = p.cut.split * p.cut.teams,
            token_groups = (product.in.tokens + TokenTiles * 8 - 1) / (TokenTiles * 8);
  const int blocks = (p.cut.tiles + p.cut.teams - 1) / p.cut.teams;
  const int grid = std::min(blocks, multiprocessors * environment("SKINNY_BLOCKS", 4));
  const int share = (product.in.columns / block_columns + p.cut.split - 1) / p.cut.split;
  p.cut.stages = std::min(stages<Product>, (blocks + grid - 1) / grid * ((share + depth - 1) / depth));
  constexpr int tiles = skinny_epilogue<Product>::row_tiles;
  const int bytes = warps * (p.cut.stages * tiles * depth * 512 + 2 * tiles * TokenTiles * 256);
  const auto kernel = skinny_kernel<Product, TokenTiles>;
  STEPGRAPH_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch<skinny_params<Product>>(at, name, kernel, dim3(grid, token_groups), dim3((warps + TokenTiles) * 32),
                                 p, bytes);
}

template <class Product>
void launch_skinny(stream_ref at, const char* name, const Product& product) {
  const int tokens = product.in.tokens;
  STEPGRAPH_EXPECTS(tokens >= 1 && tokens <= skinny_tokens && product.in.columns % block_columns == 0, name,
                    ": tokens must be 1 to ", skinny_tokens, " and columns a multiple of ", block_columns,
                    ", got ", tokens, " and ", product.in.columns);
  const int together = environment("SKINNY_TOKENS", 32);
  if (tokens <= 8 || together <= 8) return launch_skinny<Product, 1>(at, name, product);
  if (tokens <= 16 || together <= 16) return launch_skinny<Product, 2>(at, name, product);
  if (tokens <= 32 || together <= 32) return launch_skinny<Product, 4>(at, name, product);
  launch_skinny<Product, 8>(at, name, product);
}

}  // namespace stepgraph::llama::detail
