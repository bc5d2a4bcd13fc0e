#include "kernels/step/draft_prologue.hpp"
#include "kernels/step/poison_kv.hpp"
#include "kernels/step/read_fence.hpp"
#include "kernels/step/step_clock.hpp"
#include "kernels/step/step_prologue.hpp"
#include "kernels/step/verify_prologue.hpp"
#include "stepgraph.hpp"
#include "tests/kernels/null_pointers.hpp"

namespace stepgraph {
namespace {

staged_header header;

step_rows_params good_rows() {
  step_rows_params p;
  p.header = &header;
  p.requests_in = p.counts_in = p.token_starts = p.following = p.capacities_in = p.joins_in = in;
  p.rows = 2;
  p.state.pages = p.state.seq_lens = p.state.last_token = p.state.first_draft = word;
  p.live_rows = p.requests = p.query_counts = p.seq_lens = p.row_status = word;
  return p;
}

verify_view good_verify() {
  return {.live_rows = in, .rows = 2, .max_query_count = 1, .cu_seqlens_q = in, .token_ids = in};
}

accept_result good_result() {
  return {.accept_count = word,
          .emit_count = word,
          .cache_advance = word,
          .next_token = word,
          .emit_tokens = word,
          .path = word,
          .stride = 1};
}

verify_inputs_params good_verify_inputs() {
  verify_inputs_params p;
  p.wanted = p.last_token = in;
  p.vocab_size = 8;
  p.query_counts = p.token_ids = word;
  p.inputs = good_inputs();
  p.inputs.lengths.delta_by_row = word;
  return p;
}

}  // namespace

TEST_CASE("a null pointer is named: attention and sampling") {
  paged_attention_params attention;
  attention.query = attention.cache.keys = attention.cache.values = in;
  attention.output = word;
  attention.page_table = attention.row_of = attention.causal_length = in;
  expect_named("paged_attention", paged_attention, attention,
               {FIELD(query), FIELD(output), FIELD(cache.keys), FIELD(cache.values), FIELD(page_table),
                FIELD(row_of), FIELD(causal_length)});

  const float logit = 0;
  greedy_sample_params greedy;
  greedy.logits = &logit;
  greedy.live_rows = in;
  greedy.next_token = word;
  expect_named("greedy_sample", greedy_sample, greedy, {FIELD(logits), FIELD(live_rows), FIELD(next_token)});
}

TEST_CASE("a null pointer is named: verify, accept and draft-extend") {
  verify_inputs_params verify = good_verify_inputs();
  expect_named("verify_inputs", verify_inputs, verify, {FIELD(wanted), FIELD(last_token)});

  greedy_accept_params accept{.verify = good_verify(), .argmax = in, .result = good_result()};
  expect_named("greedy_accept", greedy_accept, accept, {FIELD(verify.live_rows), FIELD(verify.cu_seqlens_q)});
  expect_named("greedy_accept", greedy_accept, accept, {FIELD(verify.token_ids), FIELD(argmax)});
  expect_named("greedy_accept", greedy_accept, accept,
               {FIELD(result.accept_count), FIELD(result.emit_count), FIELD(result.cache_advance),
                FIELD(result.next_token), FIELD(result.emit_tokens), FIELD(result.path)});

  finish_rows_params finish;
  finish.verify = good_verify();
  finish.result = good_result();
  finish.cache_seqlens = in;
  finish.requests = in;
  finish.finished = word;
  finish.request_count = 2;
  finish.end_ids = in;
  finish.end_id_count = 1;
  expect_named("finish_rows", finish_rows, finish, {FIELD(cache_seqlens), FIELD(requests), FIELD(finished)});
  expect_named("finish_rows", finish_rows, finish, {FIELD(end_ids)});

  draft_extend_inputs_params extend;
  extend.verify = good_verify();
  extend.result = good_result();
  extend.inputs = good_inputs();
  extend.query_counts = extend.token_ids = word;
  extend.plain = {.accepts = in, .token_ids = in, .query_counts = in, .last_token = in};
  expect_named("draft_extend_inputs", draft_extend_inputs, extend, {FIELD(query_counts), FIELD(token_ids)});
  expect_named("draft_extend_inputs", draft_extend_inputs, extend,
               {FIELD(plain.token_ids), FIELD(plain.query_counts), FIELD(plain.last_token)});
}

TEST_CASE("a null pointer is named: the nodes of a step") {
  step_prologue_params prologue;
  prologue.rows = good_rows();
  prologue.inputs = good_inputs();
  prologue.staged_tokens = in;
  prologue.token_ids = word;
  expect_named(
      "step_prologue", step_prologue, prologue,
      {FIELD(rows.header), FIELD(rows.requests_in), FIELD(rows.counts_in), FIELD(rows.token_starts),
       FIELD(rows.following), FIELD(rows.capacities_in), FIELD(rows.joins_in), FIELD(rows.state.pages),
       FIELD(rows.state.seq_lens), FIELD(rows.state.last_token), FIELD(rows.live_rows), FIELD(rows.requests),
       FIELD(rows.query_counts), FIELD(rows.seq_lens), FIELD(rows.row_status)});
  expect_named("step_prologue", step_prologue, prologue, {FIELD(staged_tokens), FIELD(token_ids)});

  draft_prologue_params draft;
  draft.rows = good_rows();
  draft.steps = draft.max_context = 1;
  draft.seq_lens = draft.query_counts = draft.drafting = draft.cu_seqlens_q = word;
  draft.row_of = draft.last_row = draft.token_ids = draft.hidden_row = word;
  expect_named("draft_prologue", draft_prologue, draft,
               {FIELD(rows.state.first_draft), FIELD(seq_lens), FIELD(query_counts), FIELD(drafting),
                FIELD(cu_seqlens_q), FIELD(row_of), FIELD(last_row), FIELD(token_ids), FIELD(hidden_row)});

  verify_prologue_params verify;
  verify.rows = good_rows();
  verify.verify = good_verify_inputs();
  verify.verify.wanted = verify.rows.query_counts;
  verify.verify.last_token = verify.rows.state.last_token;
  verify.verify.inputs.requests = verify.rows.requests;
  verify.verify.inputs.lengths.seq_lens = verify.rows.seq_lens;
  verify.verify.query_counts = word + 8;
  verify.verify.inputs.query_counts = verify.verify.inputs.lengths.delta_by_row = word + 8;
  verify.verify.parents = in;
  verify.verify.parent_of = word;
  verify.verify.parent_stride = 1;
  verify.staged_tokens = verify.staged_parents = in;
  verify.drafts = {.max_steps = 1, .chain = in, .seq_lens = in};
  expect_named("verify_prologue", verify_prologue, verify, {FIELD(staged_tokens)});
  expect_named("verify_prologue", verify_prologue, verify, {FIELD(staged_parents)});
  expect_named("verify_prologue", verify_prologue, verify, {FIELD(drafts.seq_lens)});

  row_result result{};
  step_epilogue_params epilogue;
  epilogue.header = &header;
  epilogue.following = epilogue.live_rows = epilogue.requests = epilogue.query_counts = in;
  epilogue.cache_seqlens = epilogue.next_token = epilogue.row_status = in;
  epilogue.rows = epilogue.ring_rows = 2;
  epilogue.state.seq_lens = epilogue.state.last_token = epilogue.result_tokens = word;
  epilogue.results = &result;
  epilogue.result_slots = 1;
  expect_named("step_epilogue", step_epilogue, epilogue,
               {FIELD(header), FIELD(following), FIELD(live_rows), FIELD(requests), FIELD(query_counts),
                FIELD(cache_seqlens), FIELD(next_token), FIELD(row_status), FIELD(state.seq_lens),
                FIELD(state.last_token), FIELD(results), FIELD(result_tokens)});

  std::int64_t number = 0;
  std::uint64_t fence = 0;
  step_clock_params clock{.header = &header, .times = &number, .slots = 1, .marks = 1};
  expect_named("step_clock", step_clock, clock, {FIELD(header), FIELD(times)});
  read_fence_params reads{.header = &header, .part = 0, .fence = &fence};
  expect_named("read_fence", read_fence, reads, {FIELD(header), FIELD(fence)});
  poison_kv_params poison;
  poison.pool = word;
  poison.open = poison.seq_lens = in;
  poison.live_tokens = word;
  expect_named("poison_kv", poison_kv, poison,
               {FIELD(pool), FIELD(open), FIELD(seq_lens), FIELD(live_tokens)});
}

}  // namespace stepgraph
