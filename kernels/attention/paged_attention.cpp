#include "kernels/attention/paged_attention.hpp"

#include <vector>

#include "graphs/error.hpp"
#include "graphs/guard_off.hpp"
#include "kernels/attention/paged_attention_host.hpp"
#include "kernels/attention/split_attention.hpp"
#include "kernels/check_aligned.hpp"

namespace stepgraph {

void paged_attention(stream_ref at, const paged_attention_params& p) {
  constexpr const char* op = "paged_attention";
  detail::check_pointers(op, {{"query", p.query},
                              {"output", p.output},
                              {"cache.keys", p.cache.keys},
                              {"cache.values", p.cache.values},
                              {"page_table", p.page_table},
                              {"row_of", p.row_of},
                              {"causal_length", p.causal_length}});
  detail::check_aligned(op, 16,
                        {{"query", p.query},
                         {"output", p.output},
                         {"cache.keys", p.cache.keys},
                         {"cache.values", p.cache.values},
                         {"step_kv.keys", p.step_kv.keys},
                         {"step_kv.values", p.step_kv.values},
                         {"workspace", p.workspace}});
  STEPGRAPH_EXPECTS(p.tokens > 0 && p.rows > 0, op, ": tokens and rows must be positive, got ", p.tokens,
                    " and ", p.rows);
  STEPGRAPH_EXPECTS(p.head_size == 64 || p.head_size == 128, op, ": head_size ", p.head_size,
                    " is not supported, only 64 and 128");
  STEPGRAPH_EXPECTS(p.kv_heads > 0 && p.heads > 0 && p.heads % p.kv_heads == 0, op, ": ", p.kv_heads,
                    " KV heads do not divide ", p.heads, " query heads");
  STEPGRAPH_EXPECTS(p.page_shift >= 0 && p.page_shift <= 10, op,
                    ": the page size must be a power of two from 1 to 1024, got 2^", p.page_shift);
  STEPGRAPH_EXPECTS(
      p.page_columns > 0 && (p.page_table_stride >= p.page_columns || p.rows == 1 || p.page_indptr.data), op,
      ": page_table_stride ", p.page_table_stride, " is less than page_columns ", p.page_columns);
  const std::int64_t vector = p.type == element_type::f32 ? 4 : 8;  // elements in 16 bytes
  STEPGRAPH_EXPECTS(p.cache.page_stride % vector == 0 && p.cache.token_stride % vector == 0 &&
                        p.cache.head_stride % vector == 0,
                    op, ": cache strides ", p.cache.page_stride, ", ", p.cache.token_stride, ", ",
                    p.cache.head_stride, " must be multiples of ", vector, " elements");
  STEPGRAPH_EXPECTS(p.window >= 0, op, ": window must not be negative, got ", p.window);
  STEPGRAPH_EXPECTS(!p.tree_mask || p.cu_seqlens_q, op, ": tree_mask needs cu_seqlens_q");
  STEPGRAPH_EXPECTS(!p.tree_mask || (p.tree_tokens >= 1 && p.tree_tokens <= 64), op, ": a tree of ",
                    p.tree_tokens, " tokens is not supported, only 1 to 64");
  STEPGRAPH_EXPECTS(!p.page_indptr.data || p.page_entries >= 0, op,
                    ": page_entries must not be negative, got ", p.page_entries);
  STEPGRAPH_EXPECTS(!p.step_kv.keys == !p.step_kv.values, op,
                    ": step_kv needs both keys and values, or neither");
  STEPGRAPH_EXPECTS(!p.step_kv.keys || p.cu_seqlens_q, op, ": step_kv needs cu_seqlens_q");
  STEPGRAPH_EXPECTS(p.step_kv.token_stride % vector == 0 && p.step_kv.head_stride % vector == 0, op,
                    ": step_kv strides ", p.step_kv.token_stride, ", ", p.step_kv.head_stride,
                    " must be multiples of ", vector, " elements");
  if (at.is_host() && guard_off("frozen-plan"))  // what a host plan does: lengths as they were at capture
    return enqueue_host(at, op, [p, frozen = std::vector(p.causal_length, p.causal_length + p.tokens)]() {
      paged_attention_params planned = p;
      planned.causal_length = frozen.data();
      detail::paged_attention_host(planned);
    });
  if (at.is_host()) return enqueue_host(at, op, [p] { detail::paged_attention_host(p); });
#if STEPGRAPH_CUDA
  const std::size_t needed = paged_attention_workspace_bytes(at.where(), p);
  if (needed == 0 || !p.workspace || !p.cu_seqlens_q || !p.cache_seqlens)
    return detail::paged_attention_cuda(at, p);
  STEPGRAPH_EXPECTS(p.workspace_bytes >= needed, op, ": the workspace has ", p.workspace_bytes, " bytes, ",
                    needed, " are needed");
  detail::split_attention_cuda(at, p, {});
#else
  throw cuda_error(message(op, ": this stepgraph was built without CUDA"), 0);
#endif
}

std::size_t paged_attention_workspace_bytes(device where, const paged_attention_params& p) {
  if (where.is_host() || p.type == element_type::f32) return 0;
#if STEPGRAPH_CUDA
  return detail::plan_split(detail::split_device::of(where), p, {}).workspace_bytes;
#else
  return 0;
#endif
}

}  // namespace stepgraph
