#include "kernels/metadata/draft_steps_metadata.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/draft_steps_metadata_op.hpp"

namespace stepgraph {

void draft_steps_metadata(stream_ref at, const draft_steps_metadata_params& params) {
  constexpr const char* op = draft_steps_metadata_op::name;
  draft_steps_metadata_params p = params;
  detail::check_cached(op, p.decode.lengths, p.decode.source, p.decode.requests);
  STEPGRAPH_EXPECTS(p.steps > 0, op, ": steps must be positive, got ", p.steps);
  detail::check_pointers(op, {{"cache_seqlens", p.cache_seqlens}});
  detail::check_query(op, p.query);
  detail::check_map(op, "page_map", p.decode.page_map);
  detail::check_sums(op, "cu_seqlens_k", p.cu_seqlens_k, p.decode.lengths.rows, p.decode.lengths.cap);
  detail::check_decode_tables(op, p.decode);
  STEPGRAPH_EXPECTS(!p.decode.window.out_cache_loc, op,
                    ": window.out_cache_loc is not an output of draft steps");
  p.decode.lengths.delta = p.steps;
  p.decode.lengths.delta_by_row = nullptr;
  launch_tiles(at, draft_steps_metadata_op{p});
}

}  // namespace stepgraph
