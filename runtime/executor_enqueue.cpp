#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/programmatic_launch.hpp"
#include "kernels/step/read_fence.hpp"
#include "kernels/step/step_clock.hpp"
#include "kernels/step/step_prologue.hpp"
#include "kernels/step/verify_prologue.hpp"
#include "runtime/before_metadata.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {

step_context step_executor::state::context(const step_key& key, const step_definition& step) {
  const detail::step_vectors& own = buffers.target;
  return {.key = key,
          .stream = stream,
          .live_rows = buffers.live_rows,
          .requests = buffers.requests,
          .query_counts = own.query_counts,
          .cache_seqlens = own.cache_seqlens,
          .cu_seqlens_q = own.cu_seqlens_q,
          .cu_seqlens_k = own.cu_seqlens_k,
          .last_row = own.last_row,
          .token_ids = own.token_ids,
          .positions = own.positions,
          .row_of = own.row_of,
          .causal_length = own.causal_length,
          .out_cache_loc = own.out_cache_loc,
          .page_table = buffers.page_table,
          .page_table_stride = buffers.page_table_stride,
          .page_columns = buffers.page_columns,
          .page_shift = page_shift,
          .kv = &buffers.kv,
          .parents = step.tree ? buffers.parents : nullptr,
          .ancestors = step.tree ? buffers.ancestors : nullptr,
          .next_token = buffers.next_token,
          .argmax = buffers.argmax,
          .ranked_argmax = step.sampled ? nullptr : buffers.ranked,
          .accepted = buffers.accepted,
          .out_line = nullptr,
          .feed_token = nullptr,
          .ranked_feed = {},
          .hidden = buffers.hidden,
          .hidden_in = nullptr,
          .hidden_row = nullptr,
          .hidden_out = nullptr,
          .hidden_size = limits.hidden_size,
          .draft_step = 0,
          .sampled = step.sampled,
          .sampling = {.settings = buffers.state.sampling,
                       .requests = buffers.requests,
                       .count = buffers.state.requests},
          .distributions = buffers.distributions,
          .drafted = {},
          .probabilities = nullptr,
          .probabilities_stride = 0,
          .scratch = buffers.scratch,
          .faults = sink()};
}

/// The rows as they are staged, read by the first node of every step.
step_rows_params step_executor::state::staged_rows(const step_key& key, std::int32_t* query_counts) {
  const detail::staging_layout layout{key.rows, key.tokens};
  const bool accepts = key.kind == step_kind::target_verify || key.kind == step_kind::draft_decode;
  return {.header = header(),
          .requests_in = staged(layout.requests()),
          .counts_in = staged(layout.query_counts()),
          .token_starts = staged(layout.token_starts()),
          .following = staged(layout.following()),
          .capacities_in = staged(layout.capacities()),
          .joins_in = staged(layout.joins_of()),
          .rows = key.rows,
          .max_query_count = accepts               ? limits.max_draft_tokens + 1
                             : is_ragged(key.kind) ? key.tokens
                                                   : 1,
          // note: the draft decodes go before a verify step whose token bucket they do not know
          .max_patches = options.requests ? 0 : row_buckets.largest() + token_buckets.largest(),
          .max_joins = options.requests ? 0 : key.rows,
          .state = buffers.state,
          .live_rows = buffers.live_rows,
          .requests = buffers.requests,
          .query_counts = query_counts,
          .seq_lens = buffers.target.seq_lens,
          .row_status = buffers.row_status,
          .ranked = key.kind == step_kind::draft_decode
                        ? ranked_lines{.data = buffers.ranked_chain, .count = key.rows * key.steps}
                        : ranked_lines{.data = buffers.ranked, .count = accepts ? key.tokens : key.rows},
          .faults = sink()};
}

/// len = `seq_lens` and, where a row has one, its `delta`.
row_lengths step_executor::state::lengths(const step_key& key, std::int32_t* seq_lens, std::int32_t* delta) {
  return {.live_rows = buffers.live_rows,
          .rows = key.rows,
          .seq_lens = seq_lens,
          .delta_by_row = delta,
          .cap = limits.max_context};
}

verify_view step_executor::state::verified(const step_key& key, bool tree) {
  return {.live_rows = buffers.live_rows,
          .rows = key.rows,
          .max_query_count = limits.max_draft_tokens + 1,
          .cu_seqlens_q = buffers.target.cu_seqlens_q,
          .token_ids = buffers.target.token_ids,
          .parents = tree ? buffers.parents : nullptr};
}

void step_executor::state::mark_clock(const step_key& key, int mark) {
  if (times.empty()) return;
  step_clock(stream, {.header = header(),
                      .times = times.data(),
                      .slots = limits.in_flight,
                      .marks = clock_marks,
                      .mark = part_marks * part_of(key.kind) + mark});
}

/// A node of the step is enqueued: where nodes are timed, the clock says when it is done.
void step_executor::state::mark_node(const step_key& key, const char* name) {
  if (options.timing != step_timing::nodes) return;
  mark_clock(key, ++next_mark);
  std::vector<node_time>& nodes = statistics.times.nodes[static_cast<int>(key.kind)];
  if (static_cast<int>(nodes.size()) < next_mark) nodes.push_back({.name = name, .time = {}});
}

/// One whole step. Captured or eager, the same calls.
void step_executor::state::enqueue(const step_key& key, const step_definition& step) {
  const programmatic_launch_scope scope(options.programmatic_launch);
  mark_clock(key, 0);
  next_mark = 0;
  mark_node(key, "clock");
  switch (key.kind) {
    case step_kind::decode:
    case step_kind::extend:
    case step_kind::target_verify:
      enqueue_target(key, step);
      break;
    case step_kind::draft_extend:
      enqueue_draft_extend(key, step);
      break;
    case step_kind::draft_decode:
      enqueue_draft_decode(key, step);
      break;
  }
  mark_clock(key, part_marks - 1);
}

/// Prologue, metadata, the embedder's body, epilogue; in a step with trees the kept tokens' keys and values
/// then move to where they belong.
void step_executor::state::enqueue_target(const step_key& key, const step_definition& step) {
  const bool accepts = key.kind == step_kind::target_verify;
  const detail::step_vectors& own = buffers.target;
  const detail::staging_layout layout{key.rows, key.tokens, step.tree};
  const step_rows_params rows = staged_rows(key, accepts ? buffers.wanted : own.query_counts);
  const row_lengths length = lengths(key, own.seq_lens, own.query_counts);
  // the first node writes `live_rows` itself: its threads read the staged number, so that none waits for another
  row_lengths staged_length = length;
  staged_length.live_rows = &header()->live_rows;
  const token_inputs_params inputs{.lengths = staged_length,
                                   .query_counts = own.query_counts,
                                   .max_query_count = rows.max_query_count,
                                   .tokens = key.tokens,
                                   .requests = buffers.requests,
                                   .source = source,
                                   .skip = 0,  // a body's kernels store through every slot: the sink takes it
                                   .cu_seqlens_q = own.cu_seqlens_q,
                                   .last_row = own.last_row,
                                   .row_of = own.row_of,
                                   .position = own.positions,
                                   .causal_length = own.causal_length,
                                   .out_cache_loc = own.out_cache_loc,
                                   .faults = sink()};
  const draft_view drafted{.lines = step.sampled ? buffers.draft_lines : nullptr,
                           .stride = limits.max_draft_tokens,
                           .probabilities = buffers.probabilities,
                           .probabilities_stride = options.draft ? options.draft->vocab_size : 0,
                           .line_count = buffers.probability_lines,
                           .vocab_size = options.draft ? options.draft->vocab_size : 0,
                           .draft_ids = options.draft ? options.draft->draft_ids : nullptr};
  if (accepts)
    verify_prologue(stream, {.rows = rows,
                             .staged_tokens = staged(layout.token_ids()),
                             .staged_parents = step.tree ? staged(layout.parents()) : nullptr,
                             .drafts = {.max_steps = limits.max_draft_tokens - 1,
                                        .chain = buffers.chain,
                                        .ranked = buffers.ranked_chain,
                                        .target_ids = options.draft ? options.draft->target_ids : nullptr,
                                        .drawn = buffers.chain_drawn,
                                        .seq_lens = buffers.draft.seq_lens},
                             .draft_lines = step.sampled ? buffers.draft_lines : nullptr,
                             .verify = {.wanted = buffers.wanted,
                                        .finished = buffers.state.finished,
                                        .token_capacity = buffers.state.token_capacity,
                                        .last_token = buffers.state.last_token,
                                        .drafts = buffers.drafts,
                                        .draft_stride = limits.max_draft_tokens,
                                        .parents = step.tree ? buffers.row_parents : nullptr,
                                        .parent_stride = step.tree ? limits.max_draft_tokens + 1 : 0,
                                        .vocab_size = limits.vocab_size,
                                        .query_counts = own.query_counts,
                                        .token_ids = own.token_ids,
                                        .parent_of = step.tree ? buffers.parents : nullptr,
                                        .ancestors = step.tree ? buffers.ancestors : nullptr,
                                        .inputs = inputs}});
  else
    step_prologue(stream, {.rows = rows,
                           .staged_tokens = staged(layout.token_ids()),
                           .vocab_size = limits.vocab_size,
                           .token_ids = own.token_ids,
                           .inputs = inputs});
  mark_node(key, accepts ? "verify_prologue" : "step_prologue");
  // with pages of one token a tree's commit writes the table: it is the last to touch it
  const bool commits_table = step.tree && page_shift == 0, too_early = guard_off("read-fence");
  if (too_early) enqueue_read_fence(key.kind);
  if (!guard_off("stale-all") || !stream.is_capturing()) enqueue_page_table(own, length, sink());
  mark_node(key, "decode_metadata");
  if (!commits_table && !too_early) enqueue_read_fence(key.kind);
  step_context made = context(key, step);
  if (accepts) made.drafted = drafted;
  step.body(made);
  mark_node(key, "body");
  enqueue_epilogue(key, step);
  if (commits_table && !too_early) enqueue_read_fence(key.kind);
  join_read_fence();
}

/// The rows' lengths, their sums and the page table.
void step_executor::state::enqueue_page_table(const detail::step_vectors& own, const row_lengths& length,
                                              const fault_sink& faults) {
  if (detail::before_metadata) detail::before_metadata(stream);
  decode_metadata(stream, {.lengths = length,
                           .requests = buffers.requests,
                           .source = source,
                           .skip = -1,
                           .cache_seqlens = own.cache_seqlens,
                           .cu_seqlens_k = own.cu_seqlens_k,
                           .page_table = buffers.page_table,
                           .page_table_stride = buffers.page_table_stride,
                           .page_columns = buffers.page_columns,
                           .faults = faults});
}

/// A branch of the graph, so that nothing waits for it.
void step_executor::state::enqueue_read_fence(step_kind kind) {
  if (!options.read_fence) return;
  fence_forked->record(stream);
  fence_stream->ref().wait(*fence_forked);
  stepgraph::read_fence(fence_stream->ref(),
                        {.header = header(), .part = static_cast<std::int32_t>(kind), .fence = read_fence});
  fence_joined->record(fence_stream->ref());
}

void step_executor::state::join_read_fence() {
  if (options.read_fence) stream.wait(*fence_joined);
}

}  // namespace stepgraph
