#include "kernels/metadata/compressed_metadata.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/compressed_metadata_op.hpp"

namespace stepgraph {

void compressed_metadata(stream_ref at, const compressed_metadata_params& p) {
  constexpr const char* op = compressed_metadata_op::name;
  STEPGRAPH_EXPECTS(p.tokens > 0, op, ": tokens must be positive, got ", p.tokens);
  detail::check_pointers(op, {{"live_tokens", p.live_tokens}, {"causal_length", p.causal_length}});
  STEPGRAPH_EXPECTS(p.levels > 0 && p.levels <= p.max_levels, op, ": levels must be in [1, ", p.max_levels,
                    "], got ", p.levels);
  STEPGRAPH_EXPECTS(p.out_locs == 0 || p.out_loc.data, op, ": out_loc is null");
  STEPGRAPH_EXPECTS(std::int64_t{p.tokens} * p.levels < INT32_MAX, op, ": ", p.tokens,
                    " tokens are too many");
  for (int i = 0; i < p.levels; ++i) {
    const compression_level& level = p.level[i];
    STEPGRAPH_EXPECTS(level.ratio_shift >= 0 && level.ratio_shift <= 20, op, ": level ", i,
                      ": the ratio must be a power of two from 1 to 2^20, got 2^", level.ratio_shift);
    if (!level.page_indices) continue;
    detail::check_pointers(op, {{"page_table", p.page_table}});
    STEPGRAPH_EXPECTS(p.page_columns > 0 && p.page_lines > 0, op, ": page_table has ", p.page_lines,
                      " lines of ", p.page_columns, " columns");
    STEPGRAPH_EXPECTS(p.page_table_stride >= p.page_columns || p.page_lines == 1, op, ": page_table_stride ",
                      p.page_table_stride, " is less than its ", p.page_columns, " columns");
    STEPGRAPH_EXPECTS(p.page_shift >= level.ratio_shift && p.page_shift <= 20, op, ": level ", i,
                      ": a page of 2^", p.page_shift, " tokens holds no entry of ratio 2^",
                      level.ratio_shift);
    detail::check_table(op, "page_indices", level.page_indices, p.tokens, 1);
  }
  launch_tiles(at, compressed_metadata_op{p});
}

}  // namespace stepgraph
