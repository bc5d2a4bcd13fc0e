#include "bench/attention_unguarded.hpp"

#include "graphs/error.hpp"
#include "kernels/attention/split_attention.cuh"
#include "kernels/attention/warpgroup_attention.cuh"

namespace stepgraph::bench {

void attend_unguarded(stream_ref at, const paged_attention_params& params,
                      const detail::split_options& options) {
  using namespace detail;
  const split_plan plan = plan_split(split_device::of(at.where()), params, options);
  split_params p = planned_params(params, plan);
  if (plan.warpgroups && options.bulk) p.bulk = map_pages(params, p);
  STEPGRAPH_EXPECTS(params.type == element_type::bf16 && params.head_size == 128 &&
                        (plan.warpgroups || plan.query_warps <= 2),
                    "attend_unguarded: bfloat16, head size 128 and at most 32 query rows a tile alone");
  if (plan.warpgroups) return launch_warpgroup_tile<bf16, warpgroup_tile<128, false>>(at, p);
  if (plan.warps == 8) return launch_split_tile<bf16, split_tile<128, 1, 8, false>>(at, p);
  if (plan.query_warps == 1) return launch_split_tile<bf16, split_tile<128, 1, 4, false>>(at, p);
  launch_split_tile<bf16, split_tile<128, 2, 4, false>>(at, p);
}

}  // namespace stepgraph::bench
