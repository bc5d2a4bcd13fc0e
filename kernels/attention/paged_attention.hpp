#pragma once

#include <cstddef>
#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/element_type.hpp"
#include "kernels/guard.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// One layer of a paged KV cache, NHD: page, token in page, head, element. Strides in elements, 64-bit.
struct kv_pages_view {
  const void* keys = nullptr;    // 16-byte aligned; page 0 is mapped memory
  const void* values = nullptr;  // the same
  std::int64_t page_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t pages = 0;  // of the pool; a table entry at or past it is not followed
};

/// Keys and values of a step's own tokens, packed as its queries are: [tokens, kv_heads, head_size]. Strides in
/// elements.
struct step_kv_view {
  const void* keys = nullptr;    // 16-byte aligned
  const void* values = nullptr;  // the same
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

/// Attention of packed query tokens over their rows' cached tokens, each up to its own causal length; the new
/// tokens' keys and values are in the cache already, or given beside it. Serves decode (E <= 1), target-verify (a chain, or a
/// tree by masks), draft-extend and prompt chunks alike. output[t, h] = softmax(scale * q . k) v over the
/// positions that token t sees: [c - window, c) of row row_of[t], in a tree those before this step and its
/// ancestors. Dead tokens and tokens with c = 0 get zeros. Nothing past a row's length is read: not the
/// table's tail, nor the tail of the last page.
///
/// Two kernels serve it. With a workspace and the rows' lengths (`cu_seqlens_q`, `cache_seqlens`), float16
/// and bfloat16 take the split-KV kernel: live work is planned on the device from those lengths and shared
/// evenly over a fixed grid, query heads of a KV head and the row's tokens share each key and value that is
/// read (FlashAttention-2's online softmax on tensor cores; stream-K's decomposition for the split). A key or
/// value that is NaN among this step's own tokens may reach other tokens of the same row there. Everything
/// else takes the plain kernel, one block a token and head.
///
/// All memory is the caller's; addresses are baked into a graph, what they point at may change between
/// replays.
struct paged_attention_params {
  element_type type = element_type::f32;  // of query, cache and output
  const void* query = nullptr;            // [tokens, heads, head_size], dense, 16-byte aligned
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

  const std::int32_t* cu_seqlens_q = nullptr;   // [rows + 1] or null; cumsum0(E), dead rows repeat the last
  const std::int32_t* cache_seqlens = nullptr;  // [rows] or null; tokens in the cache, this step's included
  const std::uint64_t* tree_mask = nullptr;  // [tokens] or null: bit j: sees the row's j-th new token; itself
                                             // included, parents before children; needs cu_seqlens_q
  std::int32_t tree_tokens = 64;             // most new tokens of a row with a mask, 1 to 64
  bool batch_invariant = false;     // a row's splits, and so its bits, depend on its own length and E alone
  void* workspace = nullptr;        // or null; 16-byte aligned. Zeroed once before the first use, left to the
                                    // op afterwards; shared by launches that follow each other in a stream
  std::size_t workspace_bytes = 0;  // at least what paged_attention_workspace_bytes says

  index_view page_indptr{};  // [rows + 1] or null: a row's entries of page_table are [indptr[r],
                             // indptr[r + 1]), one after another; page_columns is then the most a row has
  std::int64_t page_entries = 0;  // with page_indptr: of page_table; what lies past them is not read
  step_kv_view step_kv{};  // null: the step's tokens are in the cache. Else the cache and page_table are
                           // read for the tokens before them alone; needs cu_seqlens_q
};

/// Bytes of `workspace` that `params` (pointers are not looked at) need on `where`; 0 where the plain kernel
/// serves whatever is given: on the host and for float32.
std::size_t paged_attention_workspace_bytes(device where, const paged_attention_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be, and what is
/// supported.
void paged_attention(stream_ref at, const paged_attention_params& params);

}  // namespace stepgraph
