#pragma once

#include "examples/llama/cuda_llama_kernels.cuh"
#include "examples/llama/successor.cuh"
#include "kernels/sample/ranked_logit.hpp"

/// What a draft head does before its layer and after it, over packed tokens.
namespace stepgraph::llama {

template <class T>
struct fuse_inputs_params {
  const T* embedding;             // [target's vocab, hidden]
  const std::int32_t* token_ids;  // [tokens]; not read where there is a feed
  ranked_feed feed;
  const float* hidden_in;           // [*, states, hidden]
  const std::int32_t* hidden_row;   // [tokens] line of hidden_in
  const std::int32_t* live_tokens;  // one number; tokens beyond it are given zeros
  const float* embedding_norm;      // [hidden]
  const float* hidden_norm;         // [states, hidden]
  T* pair;                          // out [tokens, 1 + states, hidden]
  float* residual;                  // out [tokens, hidden]: zero, for the product to add to
  int hidden_size, states;
  float epsilon;
};

// grid: captured tokens
// a block normalises one token's embedding and the states beside it
template <class T>
__global__ void __launch_bounds__(threads)
    fuse_inputs_kernel(const __grid_constant__ fuse_inputs_params<T> p) {
  // as `embed`: the layer's kernels read this step's numbers before their own wait
  wait_then_allow_successor();
  const std::int64_t token = blockIdx.x, hidden = p.hidden_size;
  const bool live = token < *p.live_tokens;
  const std::int64_t id = !live ? 0 : p.feed.ranked ? p.feed[token] : p.token_ids[token];
  const float* const state = p.hidden_in + (live ? p.hidden_row[token] * p.states * hidden : 0);
  T* const out = p.pair + token * (1 + p.states) * hidden;
  // the states go first: they cover the way from a ranked number to its embedding
  for (std::int64_t line = 0; line < p.states * hidden; line += hidden) {
    float squares = 0.0f;
    if (live)
      for (int i = threadIdx.x; i < hidden; i += threads) squares += state[line + i] * state[line + i];
    const float scale = rsqrtf(block_sum(squares) / p.hidden_size + p.epsilon);
    for (int i = threadIdx.x; i < hidden; i += threads)
      out[hidden + line + i] = from_float<T>(live ? state[line + i] * scale * p.hidden_norm[line + i] : 0.0f);
    __syncthreads();  // the sum's shared memory is used again
  }
  const T* const embedding = p.embedding + id * hidden;
  float squares = 0.0f;
  if (live)
    for (int i = threadIdx.x; i < hidden; i += threads) {
      const float e = to_float(embedding[i]);
      squares += e * e;
    }
  const float scale = rsqrtf(block_sum(squares) / p.hidden_size + p.epsilon);
  for (int i = threadIdx.x; i < hidden; i += threads) {
    out[i] = from_float<T>(live ? to_float(embedding[i]) * scale * p.embedding_norm[i] : 0.0f);
    p.residual[token * hidden + i] = 0.0f;
  }
}

/// The residual after a layer, for a draft.
struct keep_tap_params {
  const float* residual;  // [tokens, hidden]
  float* out;             // out [tokens, states, hidden], from the tap's own state on
  int hidden_size, states;
};

// grid: captured tokens
// a block copies one token's residual
template <int = 0>
__global__ void __launch_bounds__(threads) keep_tap_kernel(const __grid_constant__ keep_tap_params p) {
  wait_for_predecessor();
  const std::int64_t token = blockIdx.x, hidden = p.hidden_size;
  for (int i = threadIdx.x; i < hidden; i += threads)
    p.out[token * p.states * hidden + i] = p.residual[token * hidden + i];
}

template <class T>
struct keep_hidden_params {
  const T* residual;              // [tokens, hidden]
  const std::int32_t* last_row;   // [rows]
  const std::int32_t* live_rows;  // one number
  const std::int32_t* out_line;   // [rows] line of each row, or null: the row itself
  T* hidden_out;                  // out [*, states, hidden]: zeros but for the last
  int hidden_size, states;
};

// grid: captured rows
// a block copies the state of a row's last token
template <class T>
__global__ void __launch_bounds__(threads)
    keep_hidden_kernel(const __grid_constant__ keep_hidden_params<T> p) {
  wait_for_predecessor();
  const int row = blockIdx.x;
  if (row >= *p.live_rows) return;
  const std::int64_t from = p.last_row[row], to = p.out_line ? p.out_line[row] : row;
  const int before = (p.states - 1) * p.hidden_size;
  T* const out = p.hidden_out + to * (before + p.hidden_size);
  for (int i = threadIdx.x; i < before; i += threads) out[i] = 0;
  for (int i = threadIdx.x; i < p.hidden_size; i += threads)
    out[before + i] = p.residual[from * p.hidden_size + i];
}

}  // namespace stepgraph::llama
