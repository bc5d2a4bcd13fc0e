#include "kernels/speculate/commit.hpp"
#include "kernels/step/step_epilogue.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {

/// What comes after the body of a target step; with trees the kept tokens then move to where they belong.
void step_executor::state::enqueue_epilogue(const step_key& key, const step_definition& step) {
  const bool accepts = key.kind == step_kind::target_verify;
  const detail::step_vectors& own = buffers.target;
  const detail::staging_layout layout{key.rows, key.tokens};
  const verify_view verify = verified(key, step.tree);
  step_epilogue(stream, {.header = header(),
                         .following = staged(layout.following()),
                         .live_rows = buffers.live_rows,
                         .rows = key.rows,
                         .requests = buffers.requests,
                         .query_counts = own.query_counts,
                         .cache_seqlens = own.cache_seqlens,
                         .next_token = buffers.next_token,
                         .ranked = accepts || step.sampled ? nullptr : buffers.ranked,
                         .row_status = buffers.row_status,
                         .accepts = accepts,
                         .accept = {.verify = verify,
                                    .argmax = step.sampled ? nullptr : buffers.argmax,
                                    .ranked = step.sampled ? nullptr : buffers.ranked,
                                    .result = buffers.accepted,
                                    .faults = sink()},
                         .finish = {.verify = verify,
                                    .result = buffers.accepted,
                                    .cache_seqlens = own.cache_seqlens,
                                    .requests = buffers.requests,
                                    .request_count = buffers.state.requests,
                                    .end_ids = buffers.end_ids,
                                    .end_id_count = end_id_count(),
                                    .budget = buffers.state.budget,
                                    .max_context = limits.max_context,
                                    .row_status = buffers.row_status,
                                    .finished = buffers.state.finished,
                                    .faults = sink()},
                         .state = buffers.state,
                         .results = results.data(),
                         .result_tokens = result_tokens.data(),
                         .emit_stride = buffers.accepted.stride,
                         .result_slots = limits.in_flight,
                         .ring_rows = row_buckets.largest()});
  mark_node(key, "step_epilogue");
  if (!step.tree) return;
  // note: what finish cuts does not count in the cache, so it may move too
  if (page_shift == 0)
    return commit_slots(stream, {.verify = verify,
                                 .accept_count = buffers.accepted.accept_count,
                                 .path = buffers.accepted.path,
                                 .path_stride = buffers.accepted.stride,
                                 .cache_seqlens = own.cache_seqlens,
                                 .slots = own.out_cache_loc,
                                 .requests = buffers.requests,
                                 .table = const_cast<std::int32_t*>(source.table),
                                 .table_stride = source.row_stride,
                                 .request_count = source.requests,
                                 .columns = source.columns,
                                 .faults = sink()});
  const kv_layout& kv = buffers.kv.layout;
  commit_kv(stream, {.verify = verify,
                     .accept_count = buffers.accepted.accept_count,
                     .path = buffers.accepted.path,
                     .path_stride = buffers.accepted.stride,
                     .slots = own.out_cache_loc,
                     .planes = buffers.planes,
                     .plane_count = 2 * kv.layers,
                     .heads = kv.kv_heads,
                     .head_bytes = static_cast<std::int32_t>(kv.head_size * size_of(kv.type)),
                     .page_shift = page_shift,
                     .pool_pages = limits.kv_pages,
                     .faults = sink()});
}

}  // namespace stepgraph
