#include "kernels/metadata/dsa_metadata.hpp"

#include <bit>

#include "kernels/check.hpp"
#include "kernels/metadata/plain_dsa_metadata_op.hpp"

namespace stepgraph {

void dsa_metadata(stream_ref at, const dsa_metadata_params& p) {
  constexpr const char* op = dsa_metadata_op::name;
  detail::check_cached(op, p.lengths, p.source, p.requests);
  detail::check_query(op, p.query);
  detail::check_map(op, "page_map", p.page_map);
  STEPGRAPH_EXPECTS(p.topk > 0, op, ": topk must be positive, got ", p.topk);
  STEPGRAPH_EXPECTS(p.kpool > 0 && std::has_single_bit(static_cast<unsigned>(p.kpool)), op,
                    ": kpool must be a power of two, got ", p.kpool);
  detail::check_pointers(op, {{"cache_seqlens", p.cache_seqlens},
                              {"cu_seqlens_q", p.cu_seqlens_q},
                              {"dsa_cache_seqlens", p.dsa_cache_seqlens}});
  STEPGRAPH_EXPECTS(!p.paged_mqa_ctx_lens || p.mqa_tokens > 0, op, ": mqa_tokens must be positive, got ",
                    p.mqa_tokens);
  STEPGRAPH_EXPECTS(p.kpool > 1 || !p.pooled_table, op, ": a pooled_table needs kpool over 1");
  const std::int64_t cap = p.lengths.cap, lines = p.line_per_token ? p.query.tokens : p.lengths.rows;
  detail::check_sums(op, "cu_seqlens_k", p.cu_seqlens_k, p.lengths.rows, cap);
  detail::check_sums(op, "dsa_cu_seqlens_k", p.dsa_cu_seqlens_k, p.query.tokens,
                     std::min<std::int64_t>(cap, std::int64_t{p.topk} + p.kpool));
  detail::check_table(op, "real_page_table", p.real_page_table, lines, pages_of(cap, p.source.page_shift));
  detail::check_table(op, "page_table_1", p.page_table_1, lines, cap);
  detail::check_table(op, "pooled_table", p.pooled_table, p.lengths.rows,
                      pages_of(cap / p.kpool, p.source.page_shift));
  if (plain_dsa_metadata_op::serves(p)) return launch_tiles(at, plain_dsa_metadata_op{{p}});
  launch_tiles(at, dsa_metadata_op{p});
}

}  // namespace stepgraph
