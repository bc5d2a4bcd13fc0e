#pragma once

#include <algorithm>

#include "examples/llama/skinny_epilogues.cuh"
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

/// All warps of the block, which arrive from two places: those that multiply and those that finish.
__device__ __forceinline__ void meet_block() {
  asm volatile("barrier.sync 1, %0;" ::"r"(blockDim.x) : "memory");
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
template <class Product, int Wide>
constexpr int stages = skinny_epilogue<Product>::row_tiles* Wide == 1 ? 4 : 2;

// grid: what the GPU holds, at most a block for each `teams` runs of `Wide` tiles; groups of TokenTiles * 8
// tokens
// a block's first warps multiply: each team of `split` warps takes a tile of rows, each warp its share of the
// columns. Its last warps, one for 8 tokens, add what the warps of a team have and finish the tile meanwhile
template <class Product, int TokenTiles, int Wide>
__global__ void __launch_bounds__((max_split + TokenTiles) * 32)
    skinny_kernel(const __grid_constant__ skinny_params<Product> p) {
  using epilogue = skinny_epilogue<Product>;
  constexpr int row_tiles = epilogue::row_tiles, n_tiles = row_tiles * Wide, m_tiles = (TokenTiles + 1) / 2;
  constexpr int part_size = n_tiles * TokenTiles * 32, batch_size = n_tiles * depth * 32;
  extern __shared__ uint4 shared[];  // weights [warps, stages, batch], then sums [2 rounds, warps, part]
  allow_successor();
  const skinny_input& in = p.product.in;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = p.cut.split, teams = p.cut.teams;
  const int warps = split * teams, tiles = p.cut.tiles, runs = (tiles + Wide - 1) / Wide,
            tile_step = gridDim.x * teams;
  const int rounds = (runs - static_cast<int>(blockIdx.x) * teams + tile_step - 1) / tile_step;
  const int first_token = blockIdx.y * TokenTiles * 8;
  float2* const partial = reinterpret_cast<float2*>(shared + warps * p.cut.stages * batch_size);

  if (warp < warps) {
    const int team = warp / split, part = warp % split, first_run = blockIdx.x * teams + team;
    const int column_blocks = in.columns / block_columns, share = (column_blocks + split - 1) / split;
    const int begin = min(part * share, column_blocks), end = min(begin + share, column_blocks);
    const int batches = (share + depth - 1) / depth;
    uint4* const ring =
        shared + warp * p.cut.stages * batch_size + lane;  // a lane reads what it has fetched itself
    skinny_walk ahead{first_run, 0}, walk{first_run, 0};
    const auto load = [&](int stage) {
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        const int tile = ahead.tile * Wide + n / row_tiles;
        const int row = epilogue::row(p.product, tile, n % row_tiles) + lane / 4;
        const bool there = tile < tiles && row < in.rows;
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
    for (int stage = 0; stage < stages<Product, Wide>; ++stage) load(stage);
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
      wait_copies<stages<Product, Wide> - 1>();
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
      stage = stage + 1 == stages<Product, Wide> ? 0 : stage + 1;
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
      meet_block();
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
    operand = epilogue::fetch(p.product, state, safe, min(blockIdx.x * teams * Wide, tiles - 1), pair);
  wait_for_predecessor();
  const float scale = norm_scale(in, in.source ? in.source[safe] : safe);
  for (int round = 0; round < rounds; ++round) {
    const int first_run = blockIdx.x * teams + round * tile_step;
    if (!epilogue::early || round > 0)
      operand = epilogue::fetch(p.product, state, safe, min(first_run * Wide, tiles - 1), pair);
    meet_block();
    for (int which = 0; which < teams * Wide; ++which) {
      const int tile = first_run * Wide + which, team = which / Wide;
      if (tile >= tiles) break;
      if (which > 0) operand = epilogue::fetch(p.product, state, safe, tile, pair);
      const float2* const parts = partial + (round % 2 * warps + team * split) * part_size +
                                  (which % Wide * row_tiles * TokenTiles + group) * 32 + lane;
      float2 sum[row_tiles];
#pragma unroll
      for (int n = 0; n < row_tiles; ++n) {
        float2 each[2] = {};  // of even and odd warps: half as many additions wait for each other
#pragma unroll
        for (int part = 0; part < max_split; ++part) {
          // note: a select, so that all loads are under way at once
          const float2 more = parts[part < split ? part * part_size + n * TokenTiles * 32 : 0];
          each[part % 2].x += part < split ? more.x : 0.0f;
          each[part % 2].y += part < split ? more.y : 0.0f;
        }
        sum[n] = {(each[0].x + each[1].x) * scale, (each[0].y + each[1].y) * scale};
      }
      epilogue::finish(p.product, state, operand, there, token, tile, pair, sum);
    }
  }
}

/// Short columns: as many warps as have one batch each. A matrix of many such tiles (an output head): a tile
/// for each warp.
template <class Product>
skinny_cut cut_of(const skinny_input& in, int multiprocessors) {
  const int rows = skinny_epilogue<Product>::row_tiles * tile_rows,
            column_blocks = in.columns / block_columns;
  constexpr int few_columns = 24;
  skinny_cut cut{.tiles = (in.rows + rows - 1) / rows};
  if (column_blocks > few_columns)
    cut.split = max_split;
  else if (cut.tiles >= multiprocessors * 16)
    cut.teams = max_split;
  else
    cut.split = std::min((column_blocks + depth - 1) / depth, 6);
  return cut;
}

template <class Product, int TokenTiles, int Wide>
void launch_skinny(stream_ref at, const char* name, const Product& product) {
  int multiprocessors = 0;
  STEPGRAPH_CUDA_TRY(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, at.where().ordinal()));
  skinny_params<Product> p{product, cut_of<Product>(product.in, multiprocessors)};
  const int warps = p.cut.split * p.cut.teams,
            token_groups = (product.in.tokens + TokenTiles * 8 - 1) / (TokenTiles * 8);
  const int blocks = (p.cut.tiles + p.cut.teams * Wide - 1) / (p.cut.teams * Wide);
  const int grid = std::min(blocks, multiprocessors * 4);
  const int share = (product.in.columns / block_columns + p.cut.split - 1) / p.cut.split;
  p.cut.stages = std::min(stages<Product, Wide>, (blocks + grid - 1) / grid * ((share + depth - 1) / depth));
  constexpr int tiles = skinny_epilogue<Product>::row_tiles * Wide;
  const int bytes = warps * (p.cut.stages * tiles * depth * 512 + 2 * tiles * TokenTiles * 256);
  const auto kernel = skinny_kernel<Product, TokenTiles, Wide>;
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
  if (tokens <= 8) return launch_skinny<Product, 1, 1>(at, name, product);
  // every tile of rows reads the tokens from the cache again: with as many tiles as an output head has, they
  // share what is read
  if constexpr (std::is_same_v<Product, plain_product>) {
    if (tokens > 32) return launch_skinny<Product, 8, 1>(at, name, product);
    if (tokens > 16) return launch_skinny<Product, 4, 2>(at, name, product);
  }
  launch_skinny<Product, 2, 1>(at, name, product);
}

}  // namespace stepgraph::llama::detail
