#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/attention/split_attention.hpp"

namespace stepgraph::detail {

template <class T, int HeadSize>
void launch_split(stream_ref at, const split_params& p, int query_warps, int warps);

template <class T, int HeadSize>
void launch_warpgroup(stream_ref at, const split_params& p);

namespace {

template <class T, int HeadSize>
void launch_planned(stream_ref at, const split_params& p, const split_plan& plan) {
  if (plan.warpgroups) return launch_warpgroup<T, HeadSize>(at, p);
  launch_split<T, HeadSize>(at, p, plan.query_warps, plan.warps);
}

/// Some thousand lines of 32 entries in all, at least four a row and no more than it has room for; a power of two.
int table_shift(std::int64_t columns, int rows) {
  const auto bits = [](std::int64_t number) { return std::bit_width(static_cast<std::uint64_t>(number)); };
  return std::max(2, static_cast<int>(std::min(bits((columns - 1) / 32), 10 - bits(rows - 1))));
}

}  // namespace

split_params planned_params(const paged_attention_params& params, const split_plan& plan) {
  const std::int64_t columns = std::clamp<std::int64_t>(params.page_columns, 1, 1 << 20);
  auto* const counters = static_cast<std::int32_t*>(params.workspace);
  return {.op = params,
          .capacity = static_cast<std::int32_t>(
              std::min<std::int64_t>(params.page_columns << params.page_shift,
                                     std::numeric_limits<std::int32_t>::max() - params.tokens)),
          .partials = reinterpret_cast<float*>(counters + plan.counters),
          .counters = counters,
          .cluster = plan.cluster,
          .block_groups = plan.block_groups,
          .group = params.heads / params.kv_heads,
          .by_group = divisor(params.heads / params.kv_heads),
          .by_block_groups = divisor(plan.block_groups),
          .min_tiles = plan.min_tiles,
          .switch_tiles = plan.switch_tiles,
          .long_share = plan.long_share,
          .table_columns = static_cast<std::int32_t>(columns),
          .table_shift = table_shift(columns, params.rows),
          .partials_by_row = plan.partials_by_row,
          .max_chunks = plan.max_chunks};
}

void split_attention_cuda(stream_ref at, const paged_attention_params& params, const split_options& options) {
  const split_plan plan = plan_split(split_device::of(at.where()), params, options);
  split_params p = planned_params(params, plan);
  if (plan.warpgroups && options.bulk) p.bulk = map_pages(params, p);
  const bool small = params.head_size == 64;
  if (params.type == element_type::bf16)
    return small ? launch_planned<bf16, 64>(at, p, plan) : launch_planned<bf16, 128>(at, p, plan);
  return small ? launch_planned<f16, 64>(at, p, plan) : launch_planned<f16, 128>(at, p, plan);
}

}  // namespace stepgraph::detail
