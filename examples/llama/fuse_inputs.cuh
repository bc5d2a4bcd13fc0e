#pragma once

#include "examples/llama/cuda_llama_kernels.cuh"
#include "examples/llama/successor.cuh"

/// What a draft head does before its layer and after it, over packed tokens.
namespace stepgraph::llama {

template <class T>
struct fuse_inputs_params {
  const T* embedding;               // [target's vocab, hidden]
  const std::int32_t* token_ids;    // [tokens]
  const float* hidden_in;           // [*, hidden]
  const std::int32_t* hidden_row;   // [tokens] line of hidden_in
  const std::int32_t* live_tokens;  // one number; tokens beyond it are given zeros
  const float* embedding_norm;      // [hidden]
  const float* hidden_norm;         // [hidden]
  T* pair;                          // out [tokens, 2, hidden]
  float* residual;                  // out [tokens, hidden]: zero, for the product to add to
  int hidden_size;
  float epsilon;
};

// grid: captured tokens
// a block normalises one token's embedding and the state beside it
template <class T>
__global__ void __launch_bounds__(threads)
    fuse_inputs_kernel(const __grid_constant__ fuse_inputs_params<T> p) {
  // as `embed`: the layer's kernels read this step's numbers before their own wait
  wait_then_allow_successor();
  const std::int64_t token = blockIdx.x, hidden = p.hidden_size;
  const bool live = token < *p.live_tokens;
  const T* const embedding = p.embedding + (live ? p.token_ids[token] * hidden : 0);
  const float* const state = p.hidden_in + (live ? p.hidden_row[token] * hidden : 0);
  T* const out = p.pair + token * 2 * hidden;
  float embedding_squares = 0.0f, state_squares = 0.0f;
  if (live)
    for (int i = threadIdx.x; i < hidden; i += threads) {
      const float e = to_float(embedding[i]), s = state[i];
      embedding_squares += e * e;
      state_squares += s * s;
    }
  const float embedding_scale = rsqrtf(block_sum(embedding_squares) / p.hidden_size + p.epsilon);
  __syncthreads();  // the sums' shared memory is used again
  const float state_scale = rsqrtf(block_sum(state_squares) / p.hidden_size + p.epsilon);
  for (int i = threadIdx.x; i < hidden; i += threads) {
    out[i] = from_float<T>(live ? to_float(embedding[i]) * embedding_scale * p.embedding_norm[i] : 0.0f);
    out[hidden + i] = from_float<T>(live ? state[i] * state_scale * p.hidden_norm[i] : 0.0f);
    p.residual[token * hidden + i] = 0.0f;
  }
}

template <class T>
struct keep_hidden_params {
  const T* residual;              // [tokens, hidden]
  const std::int32_t* last_row;   // [rows]
  const std::int32_t* live_rows;  // one number
  const std::int32_t* out_line;   // [rows] line of each row, or null: the row itself
  T* hidden_out;                  // out [*, hidden]
  int hidden_size;
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
  for (int i = threadIdx.x; i < p.hidden_size; i += threads)
    p.hidden_out[to * p.hidden_size + i] = p.residual[from * p.hidden_size + i];
}

}  // namespace stepgraph::llama
