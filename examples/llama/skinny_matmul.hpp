#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/attention/paged_attention.hpp"
#include "kernels/element_type.hpp"

/// Products of bfloat16 weights with a few tokens, each fused with what comes before and after it in a layer.
/// The weights are read once, and before the kernel waits for its predecessor, and so are positions, slots
/// and causal lengths: nothing that may still run then may write them (successor.cuh). A token's result has
/// the same bits whatever tokens ride along and however many (1 to 64).
///
/// RMS norm is split: whoever makes the residual also writes x = bf16(residual * gain) and, for each 8
/// elements, their sum of squares; whoever multiplies x scales the product of token t by
/// 1 / sqrt(mean of squares + epsilon).
///
/// All memory is the caller's and dense; matrices are row-major, 16-byte aligned. Each call enqueues one
/// launch on a CUDA stream. Refused with `invalid_argument`: more than 64 tokens, `columns` no multiple of
/// 32.
namespace stepgraph::llama {

constexpr int skinny_tokens = 64;  // most tokens of one product

/// The right-hand side of a product and the shape of the left.
struct skinny_input {
  const bf16* weight = nullptr;  // [rows, columns]
  int rows = 0;                  // outputs of a token
  int columns = 0;               // multiple of 32
  const bf16* x = nullptr;       // [tokens, columns]
  int tokens = 0;                // lines of the product, 1 to 64
  const std::int32_t* source =
      nullptr;                     // [tokens] line of x and squares of each token, or null: the token itself
  const float* squares = nullptr;  // [tokens, columns / 8], or null: no norm
  float epsilon = 0.0f;            // of the norm
};

/// Queries, keys and values: the product, turned by rotary embedding (pairs are neighbours, 2i and 2i + 1);
/// the queries go to `query`, keys and values to the token's slot in the cache.
struct qkv_product {
  skinny_input in{};                            // rows: (heads + 2 kv_heads) * head_size
  bf16* query = nullptr;                        // out [tokens, heads, head_size]
  kv_pages_view cache{};                        // out: one layer
  const float* rope = nullptr;                  // [positions, head_size / 2, 2]: cosine, sine
  const std::int32_t* positions = nullptr;      // [tokens]
  const std::int32_t* causal_length = nullptr;  // [tokens], 0: the token stores nothing
  const std::int32_t* out_cache_loc = nullptr;  // [tokens] slot
  int page_shift = 0;                           // log2 of the page size
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;  // multiple of 8
};

/// Where the residual of each row's last token goes as well: line out_line[row], or `row` itself.
struct residual_copy {
  float* to = nullptr;                          // out [*, rows of the product], or null: nowhere
  const std::int32_t* causal_length = nullptr;  // [tokens], 0: no token of a row
  const std::int32_t* row_of = nullptr;         // [tokens]
  const std::int32_t* last_row = nullptr;       // [rows] last token
  const std::int32_t* out_line = nullptr;       // [rows] or null
};

/// residual += product, and what the next product needs of it.
struct residual_product {
  skinny_input in{};            // rows: multiple of 8
  float* residual = nullptr;    // in and out [tokens, rows]
  const float* gain = nullptr;  // [rows] of the norm that follows
  bf16* x = nullptr;            // out [tokens, rows]: bf16(residual * gain)
  float* squares = nullptr;     // out [tokens, rows / 8]
  residual_copy copy{};
};

/// silu(gate) * up, of which the weights hold gate's rows, then up's.
struct gated_product {
  skinny_input in{};    // rows: 2 * ffn, ffn a multiple of 8
  bf16* out = nullptr;  // out [tokens, ffn]
};

/// The product as it is.
struct plain_product {
  skinny_input in{};
  float* out = nullptr;  // out [tokens, rows]
};

void skinny_matmul(stream_ref at, const qkv_product& product);
void skinny_matmul(stream_ref at, const residual_product& product);
void skinny_matmul(stream_ref at, const gated_product& product);
void skinny_matmul(stream_ref at, const plain_product& product);

}  // namespace stepgraph::llama
