#include "kernels/metadata/draft_steps_metadata.hpp"
#include "kernels/speculate/draft_extend_inputs.hpp"
#include "kernels/step/draft_prologue.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {

/// What the draft's steps have in common. A fault among them ends no row: its drafts are only worse.
step_context step_executor::state::draft_context(const step_key& key, const step_definition& step) {
  const detail::step_vectors& own = buffers.draft;
  step_context made = context(key, step);
  made.query_counts = own.query_counts;
  made.cache_seqlens = own.cache_seqlens;
  made.cu_seqlens_q = own.cu_seqlens_q;
  made.cu_seqlens_k = own.cu_seqlens_k;
  made.last_row = own.last_row;
  made.token_ids = own.token_ids;
  made.positions = own.positions;
  made.row_of = own.row_of;
  made.causal_length = own.causal_length;
  made.out_cache_loc = own.out_cache_loc;
  made.kv = guard_off("shared-pool") ? &buffers.kv : &buffers.draft_kv;
  made.argmax = nullptr;
  made.hidden = nullptr;
  made.hidden_row = buffers.hidden_row;
  made.probabilities = step.sampled ? buffers.probabilities : nullptr;
  made.probabilities_stride = options.draft->vocab_size;
  made.faults.row_status = nullptr;
  return made;
}

/// The draft over what the target step of this round left in the cache. Rows, pages and states are that
/// step's; nothing is staged for it.
void step_executor::state::enqueue_draft_extend(const step_key& key, const step_definition& step) {
  const detail::step_vectors& own = buffers.draft;
  fault_sink faults = sink();
  faults.row_status = nullptr;
  const row_lengths length = lengths(key, buffers.target.seq_lens, own.query_counts);
  draft_extend_inputs(stream, {.verify = verified(key, false),
                               .result = buffers.accepted,
                               .plain = {.accepts = &header()->accepts,
                                         .token_ids = buffers.target.token_ids,
                                         .query_counts = buffers.target.query_counts,
                                         .last_token = buffers.state.last_token},
                               .finished = buffers.state.finished,
                               .query_counts = own.query_counts,
                               .token_ids = own.token_ids,
                               .hidden_row = buffers.hidden_row,
                               .out_line = buffers.out_line,
                               .cache_seqlens = own.cache_seqlens,
                               .cu_seqlens_k = own.cu_seqlens_k,
                               .ranked = buffers.state.first_ranked,
                               .first_drawn = buffers.state.first_drawn,
                               .draws = step.sampled,
                               .inputs = {.lengths = length,
                                          .query_counts = own.query_counts,
                                          .max_query_count = key.tokens,
                                          .tokens = key.tokens,
                                          .requests = buffers.requests,
                                          .source = source,
                                          .skip = 0,
                                          .cu_seqlens_q = own.cu_seqlens_q,
                                          .last_row = own.last_row,
                                          .row_of = own.row_of,
                                          .position = own.positions,
                                          .causal_length = own.causal_length,
                                          .out_cache_loc = own.out_cache_loc,
                                          .faults = faults}});
  mark_node(key, "draft_extend_inputs");
  // the target's page table serves, unless a commit has since rewritten the slots it was made of
  const bool too_early = guard_off("read-fence");
  if (too_early) enqueue_read_fence(key.kind);
  if (page_shift == 0) enqueue_page_table(own, length, faults);
  if (!too_early) enqueue_read_fence(key.kind);
  step_context made = draft_context(key, step);
  made.next_token = buffers.state.first_draft;
  if (made.ranked_argmax) made.ranked_argmax = buffers.state.first_ranked;
  made.out_line = buffers.out_line;
  made.hidden_in = buffers.hidden;
  made.hidden_out = buffers.first_hidden;
  step.body(made);
  mark_node(key, "body");
  join_read_fence();
}

/// The draft's further tokens, a body call each; lengths, positions and slots of all of them are made at once.
void step_executor::state::enqueue_draft_decode(const step_key& key, const step_definition& step) {
  const detail::step_vectors& own = buffers.draft;
  draft_prologue(stream, {.rows = staged_rows(key, buffers.wanted),
                          .steps = key.steps,
                          .target_ids = options.draft->target_ids,
                          .max_context = limits.max_context,
                          .draws = step.sampled,
                          .drawn = buffers.chain_drawn,
                          .seq_lens = own.seq_lens,
                          .query_counts = own.query_counts,
                          .drafting = buffers.drafting,
                          .cu_seqlens_q = own.cu_seqlens_q,
                          .row_of = own.row_of,
                          .last_row = own.last_row,
                          .token_ids = own.token_ids,
                          .hidden_row = buffers.hidden_row});
  mark_node(key, "draft_prologue");
  // note: no faults, for a row that sits out says so by a length below 0
  draft_steps_metadata(stream, {.decode = {.lengths = lengths(key, own.seq_lens, nullptr),
                                           .requests = buffers.requests,
                                           .source = source,
                                           .skip = -1,
                                           .page_table = buffers.page_table,
                                           .page_table_stride = buffers.page_table_stride,
                                           .page_columns = buffers.page_columns},
                                .steps = key.steps,
                                .query = {.counts = own.query_counts, .max_count = 1, .tokens = key.rows},
                                .slot_skip = 0,
                                .cache_seqlens = own.cache_seqlens,
                                .cu_seqlens_k = own.cu_seqlens_k,
                                .out_cache_loc = own.out_cache_loc,
                                .position = own.positions});
  mark_node(key, "draft_steps_metadata");
  step_context made = draft_context(key, step);
  // a row that sits out has a token all the same, of which nothing may be asked: it sees no key, so its logits
  // may be anything
  made.query_counts = buffers.drafting;
  const std::int64_t rows = key.rows;
  for (int number = 1; number <= key.steps; ++number) {
    const std::int64_t line = (number - 1) * rows;
    made.draft_step = number;
    made.cache_seqlens = own.cache_seqlens + line;
    made.causal_length = made.cache_seqlens;  // a token a row: it sees all that the row has
    made.cu_seqlens_k = own.cu_seqlens_k + (number - 1) * (rows + 1);
    made.positions = own.positions + line;
    made.out_cache_loc = own.out_cache_loc + line;
    made.token_ids = number == 1 ? own.token_ids : buffers.feed + line - rows;
    made.next_token = buffers.chain + line;
    if (!step.sampled) {
      made.ranked_argmax = buffers.ranked_chain + line;
      if (number > 1) made.ranked_feed = {buffers.ranked_chain + line - rows, options.draft->target_ids};
    }
    made.feed_token = buffers.feed + line;
    made.hidden_in = number == 1 ? buffers.first_hidden : buffers.chain_hidden[(number - 1) % 2];
    made.hidden_row = number == 1 ? buffers.hidden_row : own.row_of;
    made.hidden_out = buffers.chain_hidden[number % 2];
    if (step.sampled)
      made.probabilities =
          buffers.probabilities + (buffers.state.requests + 1 + line) * made.probabilities_stride;
    step.body(made);
    mark_node(key, "body");
  }
}

}  // namespace stepgraph
