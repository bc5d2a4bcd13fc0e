#include "kernels/metadata/decode_metadata.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/decode_metadata_op.hpp"

namespace stepgraph {

void decode_metadata(stream_ref at, const decode_metadata_params& params) {
  constexpr const char* op = decode_metadata_op::name;
  detail::check_lengths(op, params.lengths);
  detail::check_source(op, params.source);
  STEPGRAPH_EXPECTS(params.requests.data, op, ": requests is null");
  STEPGRAPH_EXPECTS(params.cache_seqlens, op, ": cache_seqlens is null");
  STEPGRAPH_EXPECTS(params.lengths.cap <= params.source.token_columns(), op, ": lengths.cap ",
                    params.lengths.cap, " is over the source's ", params.source.token_columns(), " tokens");
  STEPGRAPH_EXPECTS(!params.cu_seqlens_k || params.lengths.cap * params.lengths.rows <= INT32_MAX, op, ": ",
                    params.lengths.rows, " rows of ", params.lengths.cap,
                    " tokens overflow the int32 prefix sums cu_seqlens_k");
  if (params.page_table) {
    const std::int64_t needed = pages_of(params.lengths.cap, params.source.page_shift);
    STEPGRAPH_EXPECTS(params.page_columns >= needed, op, ": page_table has ", params.page_columns,
                      " columns, a length of ", params.lengths.cap, " needs ", needed);
    STEPGRAPH_EXPECTS(params.page_table_stride >= params.page_columns || params.lengths.rows == 1, op,
                      ": page_table_stride ", params.page_table_stride, " is less than page_columns ",
                      params.page_columns);
  }
  launch_tiles(at, decode_metadata_op{params});
}

}  // namespace stepgraph
