#include "runtime/choose_tokens.hpp"

#include "graphs/error.hpp"
#include "kernels/sample/greedy_sample.hpp"
#include "kernels/sample/sample_tokens.hpp"
#include "kernels/sample/take_argmax.hpp"
#include "kernels/sample/target_distribution.hpp"
#include "kernels/speculate/greedy_logprobs.hpp"

namespace stepgraph {
namespace {

void check(const step_context& step, const head_logits& logits) {
  STEPGRAPH_EXPECTS(!logits.ranked || step.ranked_argmax,
                    "choose_tokens: head_logits::ranked is of greedy steps, this one is sampled");
  STEPGRAPH_EXPECTS(
      !logits.ranked || !logits.allowed.words,
      "choose_tokens: head_logits::ranked with head_logits::allowed: a head ranks no masked logits");
  if (!logits.wants_logprobs()) return;
  STEPGRAPH_EXPECTS(
      !logits.ranked,
      "choose_tokens: head_logits::ranked with logprobs: they need the logits that a ranking leaves out");
  STEPGRAPH_EXPECTS(
      !is_draft(step.key.kind) && !logits.target_ids,
      "choose_tokens: logprobs are of the tokens that a target step emits, not of a draft's, in ",
      to_string(step.key));
}

verify_view verified(const step_context& step) {
  return {.live_rows = step.live_rows,
          .rows = step.key.rows,
          .max_query_count = static_cast<std::int32_t>(step.accepted.stride),
          .cu_seqlens_q = step.cu_seqlens_q,
          .token_ids = step.token_ids,
          .parents = step.parents};
}

void accept_sampled(const step_context& step, const head_logits& logits) {
  target_distribution(step.stream, {.logits = logits.data,
                                    .logits_stride = logits.stride,
                                    .tokens = step.key.tokens,
                                    .vocab_size = logits.vocab_size,
                                    .live_tokens = step.cu_seqlens_q + step.key.rows,
                                    .row_of = step.row_of,
                                    .sampling = step.sampling,
                                    .allowed = logits.allowed,
                                    .with_unfiltered = logits.unfiltered_logprobs != nullptr,
                                    .distributions = step.distributions});
  rejection_accept(step.stream, {.verify = verified(step),
                                 .position = step.positions,
                                 .logits = logits.data,
                                 .logits_stride = logits.stride,
                                 .vocab_size = logits.vocab_size,
                                 .distributions = step.distributions,
                                 .sampling = step.sampling,
                                 .allowed = logits.allowed,
                                 .with_unfiltered = logits.unfiltered_logprobs != nullptr,
                                 .draft = step.drafted,
                                 .result = step.accepted,
                                 .logprobs = logits.logprobs,
                                 .unfiltered_logprobs = logits.unfiltered_logprobs,
                                 .faults = step.faults});
}

}  // namespace

void choose_tokens(const step_context& step, const head_logits& logits) {
  check(step, logits);
  const bool verify = step.key.kind == step_kind::target_verify, draft = is_draft(step.key.kind);
  if (verify && step.sampled) return accept_sampled(step, logits);
  const token_output out{
      .target_ids = logits.target_ids, .line = step.out_line, .feed_token = step.feed_token};
  if (logits.ranked) {
    const bool feeds = step.key.kind == step_kind::draft_decode && step.draft_step < step.key.steps;
    // nodes that are there anyway take them: accept, epilogue, the prologues of draft and verify
    if (!feeds || logits.reads_ranked_feed) return;
    return take_argmax(step.stream, {.ranked = step.ranked_argmax,
                                     .rows = step.key.rows,
                                     .live_rows = step.live_rows,
                                     .query_counts = step.query_counts,
                                     .next_token = step.next_token,
                                     .out = out,
                                     .faults = step.faults});
  }
  if (!step.sampled) {
    // of a verify step an argmax a token; a NaN counts only on the path that the accept walks, so it is the
    // accept that reports
    const greedy_sample_params sample{
        .logits = logits.data,
        .logits_stride = logits.stride,
        .rows = verify ? step.key.tokens : step.key.rows,
        .vocab_size = logits.vocab_size,
        .live_rows = verify ? step.cu_seqlens_q + step.key.rows : step.live_rows,
        .query_counts = verify ? nullptr : step.query_counts,
        .allowed = logits.allowed,
        .next_token = verify ? step.argmax : step.next_token,
        .out = verify ? token_output{} : out,
        .faults = verify ? fault_sink{} : step.faults};
    greedy_sample(step.stream, sample);
    if (logits.wants_logprobs())
      greedy_logprobs(step.stream, {.logits = logits.data,
                                    .logits_stride = logits.stride,
                                    .lines = sample.rows,
                                    .vocab_size = logits.vocab_size,
                                    .live_lines = sample.live_rows,
                                    .allowed = logits.allowed,
                                    .argmax = sample.next_token,
                                    .verify = verify ? verified(step) : verify_view{},
                                    .row_of = step.row_of,
                                    .logprobs = logits.logprobs,
                                    .unfiltered_logprobs = logits.unfiltered_logprobs,
                                    .stride = verify ? step.accepted.stride : 1});
    return;
  }
  // a target's token goes after the row's last; a draft's entry at position p says what may come at p + 2
  sample_tokens(step.stream, {.logits = logits.data,
                              .logits_stride = logits.stride,
                              .rows = step.key.rows,
                              .vocab_size = logits.vocab_size,
                              .live_rows = step.live_rows,
                              .query_counts = step.query_counts,
                              .sampling = step.sampling,
                              .allowed = logits.allowed,
                              .position = step.cache_seqlens,
                              .position_offset = draft ? 1 : 0,
                              .purpose = draft ? draw_purpose::draft_draw : draw_purpose::bonus_draw,
                              .node = draft ? step.draft_step + 1 : 0,
                              .next_token = step.next_token,
                              .out = out,
                              .probabilities = draft ? step.probabilities : nullptr,
                              .probabilities_stride = draft ? step.probabilities_stride : 0,
                              .logprobs = logits.logprobs,
                              .unfiltered_logprobs = logits.unfiltered_logprobs,
                              .faults = step.faults});
}

}  // namespace stepgraph
