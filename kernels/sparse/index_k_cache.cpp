#include "kernels/sparse/index_k_cache.hpp"

#include "kernels/check.hpp"
#include "kernels/sparse/index_k_cache_op.hpp"

namespace stepgraph {
namespace {

void check_cache(const char* op, const index_k_cache& cache) {
  detail::check_pointers(op, {{"cache.data", cache.data}});
  STEPGRAPH_EXPECTS(cache.key_element_bytes == 1, op, ": the cache's keys must be of 1 byte (fp8), got ",
                    cache.key_element_bytes, " bytes an element");
  STEPGRAPH_EXPECTS(cache.scale_element_bytes == 4, op,
                    ": the cache's scales must be of 4 bytes (fp32), got ", cache.scale_element_bytes,
                    " bytes an element");
  STEPGRAPH_EXPECTS(cache.page_shift >= 0 && cache.page_shift <= 10, op,
                    ": the page size must be a power of two from 1 to 1024, got 2^", cache.page_shift);
  STEPGRAPH_EXPECTS(cache.pages > 0 && cache.pages <= INT32_MAX, op,
                    ": cache.pages must be in [1, 2^31), got ", cache.pages);
  const std::int64_t page_bytes = std::int64_t{index_k_cache::key_bytes + index_k_cache::scale_bytes}
                                  << cache.page_shift;
  STEPGRAPH_EXPECTS(cache.page_stride >= page_bytes, op, ": cache.page_stride ", cache.page_stride,
                    " is less than a page's ", page_bytes, " bytes");
  STEPGRAPH_EXPECTS(cache.page_stride % 4 == 0, op, ": cache.page_stride must be a multiple of 4, got ",
                    cache.page_stride);
  STEPGRAPH_EXPECTS(reinterpret_cast<std::uintptr_t>(cache.data) % 4 == 0, op,
                    ": cache.data is not aligned to 4 bytes");
}

}  // namespace

void set_k_and_s(stream_ref at, const set_k_and_s_params& p) {
  constexpr const char* op = set_k_and_s_op::name;
  check_cache(op, p.cache);
  detail::check_pointers(op, {{"live_tokens", p.live_tokens}});
  STEPGRAPH_EXPECTS(p.tokens > 0, op, ": tokens must be positive, got ", p.tokens);
  detail::check_pointers(op, {{"loc", p.loc.data}, {"keys", p.keys}, {"scales", p.scales}});
  STEPGRAPH_EXPECTS(p.key_stride >= index_k_cache::key_bytes && p.key_stride % 4 == 0, op,
                    ": key_stride must be a multiple of 4 and at least 128 bytes, got ", p.key_stride);
  STEPGRAPH_EXPECTS(reinterpret_cast<std::uintptr_t>(p.keys) % 4 == 0, op,
                    ": keys is not aligned to 4 bytes");
  launch_lines(at, set_k_and_s_op{p});
}

void get_k_and_s(stream_ref at, const get_k_and_s_params& p) {
  constexpr const char* op = get_k_and_s_op::name;
  detail::check_lengths(op, p.lengths);
  check_cache(op, p.cache);
  detail::check_map(op, "page_map", p.page_map);
  detail::check_pointers(op, {{"page_table", p.page_table}});
  STEPGRAPH_EXPECTS(p.page_columns > 0, op, ": page_columns must be positive, got ", p.page_columns);
  STEPGRAPH_EXPECTS(p.page_table_stride >= p.page_columns || p.lengths.rows == 1, op, ": page_table_stride ",
                    p.page_table_stride, " is less than its ", p.page_columns, " columns");
  STEPGRAPH_EXPECTS(p.lengths.cap <= p.page_columns << p.cache.page_shift, op, ": lengths.cap ",
                    p.lengths.cap, " is over the page table's ", p.page_columns << p.cache.page_shift,
                    " tokens");
  STEPGRAPH_EXPECTS(p.keys || p.scales, op, ": keys and scales are both null");
  STEPGRAPH_EXPECTS(aligned16(p.keys), op, ": keys is not aligned to 16 bytes");
  STEPGRAPH_EXPECTS(p.capacity > 0, op, ": capacity must be positive, got ", p.capacity);
  STEPGRAPH_EXPECTS(p.capacity <= INT32_MAX, op, ": capacity ", p.capacity, " is over 2^31 - 1 packed rows");
  detail::check_sums(op, "cu_seqlens_k", p.cu_seqlens_k, p.lengths.rows, p.lengths.cap);
  launch_tiles(at, get_k_and_s_op{p});
}

}  // namespace stepgraph
