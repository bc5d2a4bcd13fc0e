#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/element_type.hpp"
#include "kernels/guard.hpp"

namespace stepgraph {

/// One layer of a paged KV cache, NHD: page, token in page, head, element. Strides in elements, 64-bit.
struct kv_pages_view {
  const void* keys = nullptr;  // 16-byte aligned
  const void* values = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t pages = 0;  // of the pool; a table entry at or past it is not followed
};

/// Attention of packed query tokens over their rows' cached tokens, each up to its own causal length; the new
/// tokens' keys and values are in the cache already. Serves decode (E <= 1), chain verify and prompt chunks
/// alike. output[t, h] = softmax(scale * q . k) v over positions [c - window, c) of row row_of[t]; dead
/// tokens and tokens with c = 0 get zeros. Nothing past c is read: not the table's tail, nor the tail of the
/// last page.
struct paged_attention_params {
  element_type type = element_type::f32;  // of query, cache and output
  const void* query = nullptr;            // [tokens, heads, head_size], dense
  void* output = nullptr;                 // out, the same
  kv_pages_view cache{};
  const std::int32_t* page_table = nullptr;  // [rows, page_columns]
  std::int64_t page_table_stride = 0;        // entries
  std::int64_t page_columns = 0;
  const std::int32_t* row_of = nullptr;         // [tokens]
  const std::int32_t* causal_length = nullptr;  // [tokens], c; 0 for dead tokens
  std::int32_t tokens = 0;                      // C, captured
  std::int32_t rows = 0;                        // B, captured
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;    // divides heads
  std::int32_t head_size = 0;   // 64 or 128
  std::int32_t page_shift = 0;  // log2 of the page size
  float scale = 1.0f;
  float logit_cap = 0.0f;        // cap * tanh(x / cap); 0: off
  std::int32_t window = 0;       // positions seen, own included; 0: all
  const float* sink = nullptr;   // [heads] or null: a logit in the denominator alone
  float* log_sum_exp = nullptr;  // out [tokens, heads] or null: natural, -inf where nothing is seen
  fault_sink faults{};
};

/// Enqueues the op: one launch, a grid of captured tokens times heads. Throws `invalid_argument` naming the
/// field that cannot be, and what is supported.
void paged_attention(stream_ref at, const paged_attention_params& params);

}  // namespace stepgraph
