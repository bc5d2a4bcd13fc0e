#include "kernels/metadata/kv_split_plan.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/kv_split_plan_op.hpp"

namespace stepgraph {

void kv_split_plan(stream_ref at, const kv_split_plan_params& p) {
  constexpr const char* op = kv_split_plan_op::name;
  detail::check_lengths(op, p.lengths);
  STEPGRAPH_EXPECTS(p.tile > 0, op, ": tile must be positive, got ", p.tile);
  STEPGRAPH_EXPECTS(p.max_splits > 0, op, ": max_splits must be positive, got ", p.max_splits);
  STEPGRAPH_EXPECTS(p.workers > 0, op, ": workers must be positive, got ", p.workers);
  detail::check_pointers(op, {{"chunks", p.chunks}, {"cu_chunks", p.cu_chunks}});
  const std::int64_t needed = std::int64_t{p.lengths.rows} * (p.batch_invariant ? p.max_splits : 1);
  STEPGRAPH_EXPECTS(p.capacity >= needed, op, ": capacity ", p.capacity, " is less than the ", needed,
                    " chunks that the plan may need");
  launch_tiles(at, kv_split_plan_op{p});
}

}  // namespace stepgraph
