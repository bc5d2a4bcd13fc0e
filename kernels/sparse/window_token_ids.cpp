#include "kernels/sparse/window_token_ids.hpp"

#include "kernels/check.hpp"
#include "kernels/sparse/window_token_ids_op.hpp"

namespace stepgraph {

void window_token_ids(stream_ref at, const window_token_ids_params& p) {
  constexpr const char* op = window_token_ids_op::name;
  detail::check_cached(op, p.lengths, p.source, p.requests);
  detail::check_query(op, p.query);
  detail::check_map(op, "full_to_swa", p.full_to_swa);
  STEPGRAPH_EXPECTS(p.window > 0, op, ": window must be positive, got ", p.window);
  detail::check_pointers(op,
                         {{"gather_len", p.gather_len}, {"offsets", p.offsets.data}, {"ids", p.ids.data}});
  STEPGRAPH_EXPECTS(p.capacity > 0, op, ": capacity must be positive, got ", p.capacity);
  detail::check_sums(op, "offsets", p.offsets, p.lengths.rows,
                     std::min<std::int64_t>(p.lengths.cap, std::int64_t{p.query.max_count} + p.window - 1));
  launch_tiles(at, window_token_ids_op{p});
}

}  // namespace stepgraph
