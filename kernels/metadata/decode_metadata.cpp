#include "kernels/metadata/decode_metadata.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/decode_metadata_op.hpp"

namespace stepgraph {
namespace {

void check_query_mode(const char* op, const decode_metadata_params& p) {
  const bool reads_query = p.cu_seqlens_q_mode == query_mode::cumulative || p.window.out_cache_loc;
  if (reads_query) detail::check_query(op, p.query);
  STEPGRAPH_EXPECTS(p.cu_seqlens_q || (!reads_query && p.cu_seqlens_q_mode == query_mode::left_alone), op,
                    ": cu_seqlens_q is null");
  STEPGRAPH_EXPECTS(p.cu_seqlens_q_mode != query_mode::rows_times_stride ||
                        (p.q_stride >= 0 && std::int64_t{p.q_stride} * p.lengths.rows <= INT32_MAX),
                    op, ": q_stride ", p.q_stride, " overflows cu_seqlens_q of ", p.lengths.rows, " rows");
}

}  // namespace

void detail::check_decode_tables(const char* op, const decode_metadata_params& p) {
  const std::int64_t pages = pages_of(p.lengths.cap, p.source.page_shift);
  check_table(op, "page_table", decode_metadata_op{p}.table(), p.lengths.rows, pages);
  const sliding_window_params& window = p.window;
  if (!window.page_table && !window.out_cache_loc) return;
  STEPGRAPH_EXPECTS(!window.full_to_swa != !window.page_map, op,
                    ": a sliding window needs full_to_swa or page_map, and not both");
  check_map(op, "window.full_to_swa", window.full_to_swa);
  check_map(op, "window.page_map", window.page_map);
  check_table(op, "window.page_table",
              {window.page_table, window.page_table_stride, p.page_columns, window.skip, p.tail},
              p.lengths.rows, pages);
}

void decode_metadata(stream_ref at, const decode_metadata_params& params) {
  constexpr const char* op = decode_metadata_op::name;
  detail::check_cached(op, params.lengths, params.source, params.requests);
  detail::check_map(op, "page_map", params.page_map);
  detail::check_pointers(op, {{"cache_seqlens", params.cache_seqlens}});
  detail::check_sums(op, "cu_seqlens_k", params.cu_seqlens_k, params.lengths.rows, params.lengths.cap);
  detail::check_decode_tables(op, params);
  check_query_mode(op, params);
  if (plain_decode_metadata_op::serves(params)) return launch_tiles(at, plain_decode_metadata_op{params});
  launch_tiles(at, decode_metadata_op{params});
}

void multi_head_metadata(stream_ref at, const decode_metadata_params& params) {
  decode_metadata(at, params);
}

void draft_extend_metadata(stream_ref at, decode_metadata_params params) {
  params.cu_seqlens_q_mode = query_mode::cumulative;
  decode_metadata(at, params);
}

}  // namespace stepgraph
