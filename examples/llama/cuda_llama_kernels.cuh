#pragma once

#include <cstdint>

#include "examples/llama/successor.cuh"
#include "kernels/element_type.hpp"
#include "kernels/launch.cuh"

/// The kernels of a Llama forward pass over packed tokens, in the model's type T (bf16 or float); sums and the residual are
/// float32. Grids are sized by the captured tokens and the model's shape.
namespace stepgraph::llama {

constexpr int threads = 256;

/// Sum over a block of `threads`; every thread gets it.
__device__ float block_sum(float value) {
  __shared__ float warp_sums[threads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int warp = 0; warp < threads / 32; ++warp) total += warp_sums[warp];
  return total;
}

template <class T>
struct embed_params {
  const T* embedding;             // [vocab, hidden]
  const std::int32_t* token_ids;  // [tokens]
  float* hidden;                  // out [tokens, hidden]
  const float* gain;              // [hidden] of the first norm
  T* x;                           // out [tokens, hidden]: hidden * gain; written with squares
  float* squares;                 // out [tokens, hidden / 8]: sums of hidden's squares, or null
  int hidden_size;
};

// grid: captured tokens
// a block copies one token's embedding, and starts the norm of the first layer. note: what ran before is complete when
// the layers start, so that they may read the step's numbers and the older cache before they wait
template <class T>
__global__ void __launch_bounds__(threads) embed_kernel(const __grid_constant__ embed_params<T> p) {
  wait_then_allow_successor();
  const std::int64_t token = blockIdx.x, from = std::int64_t{p.token_ids[token]} * p.hidden_size;
  for (int part = threadIdx.x; part < p.hidden_size / 8; part += threads) {
    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const std::int64_t i = part * 8 + e, to = token * p.hidden_size + i;
      const float value = to_float(p.embedding[from + i]);
      p.hidden[to] = value;
      if (p.squares) p.x[to] = from_float<T>(value * p.gain[i]);
      squares += value * value;
    }
    if (p.squares) p.squares[token * (p.hidden_size / 8) + part] = squares;
  }
}

template <class T>
struct norm_params {
  const float* hidden;         // [tokens, hidden]
  const float* weight;         // [hidden]
  T* out;                      // out [lines, hidden]
  const std::int32_t* source;  // [lines] token of each line, or null: the line itself
  int hidden_size;
  float epsilon;
};

// grid: lines
// a block normalises one token
template <class T>
__global__ void __launch_bounds__(threads) rms_norm_kernel(const __grid_constant__ norm_params<T> p) {
  wait_for_predecessor();
  const std::int64_t token = p.source ? p.source[blockIdx.x] : blockIdx.x;
  const float* const in = p.hidden + token * p.hidden_size;
  T* const out = p.out + static_cast<std::int64_t>(blockIdx.x) * p.hidden_size;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < p.hidden_size; i += threads) squares += in[i] * in[i];
  const float scale = rsqrtf(block_sum(squares) / p.hidden_size + p.epsilon);
  for (int i = threadIdx.x; i < p.hidden_size; i += threads)
    out[i] = from_float<T>(in[i] * scale * p.weight[i]);
}

template <class T>
struct rope_params {
  const float* qkv;  // [tokens, (heads + 2 kv_heads) * head_size]
  T* query;          // out [tokens, heads * head_size]
  T* keys;           // out, pages of this layer
  T* values;
  const float2* table;                // [max_context, head_size / 2] cos, sin
  const std::int32_t* positions;      // [tokens]
  const std::int32_t* causal_length;  // [tokens], 0: a token that stores nothing
  const std::int32_t* out_cache_loc;  // [tokens]
  std::int64_t page_stride, token_stride, head_stride;
  int page_shift, heads, kv_heads, head_size;
};

// grid: captured tokens
// a block turns one token's query and key by its position and stores key and value at the token's slot
template <class T>
__global__ void __launch_bounds__(threads) rope_kernel(const __grid_constant__ rope_params<T> p) {
  wait_for_predecessor();
  const int token = blockIdx.x;
  const int pairs = p.head_size / 2, all_heads = p.heads + 2 * p.kv_heads;
  const float* const qkv = p.qkv + static_cast<std::int64_t>(token) * all_heads * p.head_size;
  const std::int64_t slot = p.out_cache_loc[token];
  const std::int64_t place = (slot >> p.page_shift) * p.page_stride +
                             (slot & ((std::int64_t{1} << p.page_shift) - 1)) * p.token_stride;
  const bool stores = p.causal_length[token] > 0;
  for (int i = threadIdx.x; i < all_heads * pairs; i += threads) {
    const int head = i / pairs, pair = i % pairs;
    const float a = qkv[head * p.head_size + 2 * pair], b = qkv[head * p.head_size + 2 * pair + 1];
    const bool is_value = head >= p.heads + p.kv_heads;
    const float2 turn = is_value ? float2{1.0f, 0.0f} : p.table[p.positions[token] * pairs + pair];
    const T first = from_float<T>(a * turn.x - b * turn.y), second = from_float<T>(a * turn.y + b * turn.x);
    if (head < p.heads) {
      T* const out = p.query + (static_cast<std::int64_t>(token) * p.heads + head) * p.head_size + 2 * pair;
      out[0] = first;
      out[1] = second;
    } else if (stores) {
      const int kv_head = (head - p.heads) % p.kv_heads;
      T* const out = (is_value ? p.values : p.keys) + place + kv_head * p.head_stride + 2 * pair;
      out[0] = first;
      out[1] = second;
    }
  }
}

template <class T>
struct silu_params {
  const float* gate_up;  // [tokens, 2 * ffn]: gate, then up
  T* out;                // out [tokens, ffn]
  int ffn_size;
};

// grid: captured tokens
// a block makes one token's silu(gate) * up
template <class T>
__global__ void __launch_bounds__(threads) silu_kernel(const __grid_constant__ silu_params<T> p) {
  wait_for_predecessor();
  const float* const gate = p.gate_up + static_cast<std::int64_t>(blockIdx.x) * 2 * p.ffn_size;
  T* const out = p.out + static_cast<std::int64_t>(blockIdx.x) * p.ffn_size;
  for (int i = threadIdx.x; i < p.ffn_size; i += threads)
    out[i] = from_float<T>(gate[i] / (1.0f + expf(-gate[i])) * gate[p.ffn_size + i]);
}

template <class T>
struct matmul_params {
  const T* weight;  // [rows, columns], 16-byte aligned lines
  const T* x;       // [tokens, columns]
  float* y;         // [tokens, rows]
  int rows, columns, tokens;
  bool accumulate;  // y += instead of y =
};

constexpr int token_tile = 4;  // tokens that share one read of the weights

// grid: rows / warps a block
// a warp makes one output of every token. A token's sum has the same order whatever the other tokens are
template <class T>
__global__ void __launch_bounds__(threads) matmul_kernel(const __grid_constant__ matmul_params<T> p) {
  constexpr int vector = 16 / sizeof(T);
  wait_for_predecessor();
  const int row = blockIdx.x * (threads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.rows) return;
  const T* const weight = p.weight + static_cast<std::int64_t>(row) * p.columns;
  for (int first = 0; first < p.tokens; first += token_tile) {
    float sum[token_tile] = {};
    const int count = min(token_tile, p.tokens - first);
    for (int column = lane * vector; column < p.columns; column += 32 * vector) {
      const uint4 weights = *reinterpret_cast<const uint4*>(weight + column);
#pragma unroll
      for (int t = 0; t < token_tile; ++t) {
        if (t >= count) break;
        const uint4 inputs =
            *reinterpret_cast<const uint4*>(p.x + static_cast<std::int64_t>(first + t) * p.columns + column);
#pragma unroll
        for (int i = 0; i < vector; ++i)
          sum[t] += to_float(reinterpret_cast<const T*>(&weights)[i]) *
                    to_float(reinterpret_cast<const T*>(&inputs)[i]);
      }
    }
#pragma unroll
    for (int t = 0; t < token_tile; ++t) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) sum[t] += __shfl_xor_sync(~0u, sum[t], distance);
      if (lane == 0 && t < count) {
        float& out = p.y[static_cast<std::int64_t>(first + t) * p.rows + row];
        out = p.accumulate ? out + sum[t] : sum[t];
      }
    }
  }
}

}  // namespace stepgraph::llama
