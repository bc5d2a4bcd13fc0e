#include <algorithm>

#include "graphs/error.hpp"
#include "kernels/attention/split_attention.hpp"

namespace stepgraph::detail {

namespace {

constexpr int reserved_bytes = 1024;  // of shared memory, that the system keeps of each block's

/// Blocks that are on the device at once.
int resident_blocks(const split_device& on, const paged_attention_params& p, const split_plan& plan) {
  if (plan.warpgroups) return on.multiprocessors;
  const int by_bytes =
      on.multiprocessor_bytes / (split_block_bytes(p.head_size, plan.warps) + reserved_bytes);
  return on.multiprocessors *
         std::max(std::min(split_occupancy(p.head_size, plan.query_warps, plan.warps), by_bytes), 1);
}

/// Whether warpgroups of 64 query rows serve; not where warps of 16 do better, or are all that serves:
/// batch-invariant rows, whose bits may not depend on the bucket.
bool choose_warpgroups(bool there, const paged_attention_params& p, std::int64_t packed,
                       const split_options& options) {
  if (!there || p.batch_invariant || !(p.scale > 0)) return false;
  if (options.warpgroups >= 0) return options.warpgroups > 0;
  // note: where pages do not come by the copy engine, the loading warps keep up with larger tiles alone
  return packed > 64 || (packed >= 32 && p.page_shift >= 3);
}

}  // namespace

split_plan plan_split(const split_device& on, const paged_attention_params& p, const split_options& options) {
  split_plan plan;
  const std::int64_t group = p.heads / std::max(p.kv_heads, 1);
  const std::int64_t packed = (std::int64_t{p.tokens} + p.rows - 1) / std::max(p.rows, 1) * group;
  // a row's usual queries fill the tile; any number of them is right, rows with more take several tiles
  plan.query_warps = p.batch_invariant ? split_invariant_warps : packed <= 16 ? 1 : packed <= 32 ? 2 : 4;
  // few rows are cut least by one block of eight warps a multiprocessor, two of which merge their parts
  // themselves
  if (plan.query_warps == 1) {
    const bool few = std::int64_t{2} * p.rows * p.kv_heads <= on.multiprocessors;
    const bool fit = split_block_bytes(p.head_size, 8) <= on.block_bytes;
    plan.warps = !fit ? 4 : options.warps > 0 ? options.warps : few ? 8 : 4;
  }
  STEPGRAPH_EXPECTS(split_block_bytes(p.head_size, plan.warps) <= on.block_bytes,
                    "paged_attention: a block of split-KV attention at head size ", p.head_size, " needs ",
                    split_block_bytes(p.head_size, plan.warps), " bytes of shared memory, this device has ",
                    on.block_bytes, " for one");
  plan.warpgroups = choose_warpgroups(on.warpgroups, p, packed, options);
  const std::int64_t tile_rows = plan.warpgroups ? 64 * warpgroup_consumers : 16 * plan.query_warps;
  plan.block_groups =
      std::max(resident_blocks(on, p, plan) * options.oversubscribe / std::max(p.kv_heads, 1), 1);
  if (on.clusters && plan.warps == 8 && !plan.warpgroups && plan.block_groups > 1) plan.cluster = 2;
  plan.block_groups = plan.block_groups / plan.cluster * plan.cluster;
  plan.min_tiles = std::max(options.min_tiles * 4 / plan.warps, 1);  // of 16 tokens a warp
  // note: a batch-invariant row's chunks do not depend on what the others are
  if (!plan.warpgroups && !p.batch_invariant) plan.switch_tiles = options.switch_tiles;
  plan.long_share = options.long_share;
  const std::int64_t own = p.step_kv.keys ? p.tokens : 0;
  constexpr int split_kv_tokens = 64;  // of the shortest KV tile
  const std::int64_t tiles = ((p.page_columns << p.page_shift) + own + split_kv_tokens - 1) / split_kv_tokens;
  STEPGRAPH_EXPECTS(
      (p.rows + p.tokens * group / tile_rows) * (tiles + 1 + plan.switch_tiles) < std::int64_t{1} << 31 &&
          tiles * split_kv_tokens * group < std::int64_t{1} << 31,
      "paged_attention: ", p.rows, " rows and ", p.tokens, " tokens of up to ", tiles,
      " KV tiles are more than the 2^31 that split-KV attention plans");
  const std::size_t line =
      sizeof(float) * (p.head_size + 4);  // one query's partial output, largest logit and sum
  std::size_t partials = 0;
  if (p.batch_invariant) {
    const std::int64_t chunks =
        std::clamp<std::int64_t>((tiles + split_chunk_tiles - 1) / split_chunk_tiles, 1, split_max_chunks);
    const std::int64_t row_tokens = std::max<std::int64_t>(tile_rows / group, 1);
    plan.partials_by_row = row_tokens * p.rows < p.tokens;
    const std::int64_t tokens = plan.partials_by_row ? row_tokens * p.rows : p.tokens;
    plan.counters = static_cast<std::size_t>(p.rows) * p.kv_heads;
    plan.max_chunks = static_cast<int>(chunks);
    partials = line * tokens * p.heads * chunks;
  } else {
    plan.counters = static_cast<std::size_t>(plan.block_groups) * p.kv_heads;
    partials = line * tile_rows * 2 * plan.counters;  // a block leaves at most two units unfinished
  }
  // launches of other shapes share the workspace, so the zeros lie in the same place for all
  STEPGRAPH_EXPECTS(plan.counters <= split_counters, "paged_attention: ", plan.counters,
                    " counters (rows times KV heads when batch-invariant) are more than the ", split_counters,
                    " that a workspace holds");
  plan.counters = split_counters;
  plan.workspace_bytes = plan.counters * sizeof(std::int32_t) + partials;
  return plan;
}

}  // namespace stepgraph::detail
