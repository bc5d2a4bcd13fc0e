#include <algorithm>
#include <utility>

#include "kernels/speculate/verify_inputs.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {

/// Refuses a row that cannot be.
void step_executor::state::check_row(const step_round& round, const step_row& row, bool tree) {
  const step_kind kind = round.kind;
  const bool verify = kind == step_kind::target_verify;
  if (requests) requests->expect_open(row.request);
  STEPGRAPH_EXPECTS(source.has_request(row.request), "step_executor: request ", row.request,
                    " is outside the table of ", source.requests);
  STEPGRAPH_EXPECTS(std::exchange(named_in[row.request], checks) != checks, "step_executor: request ",
                    row.request, " is named by two rows of one step");
  STEPGRAPH_EXPECTS(row.tokens >= 0 && (is_ragged(kind) || row.tokens <= 1), "step_executor: a row of ",
                    row.tokens, " tokens in a ", to_string(kind), " step");
  if (verify)
    STEPGRAPH_EXPECTS(row.tokens <= limits.max_draft_tokens + 1, "step_executor: request ", row.request,
                      " has ", row.tokens - 1, " drafts, max_draft_tokens is ", limits.max_draft_tokens);
  // the device knows the token sampled last: it is the one that may be left out, in a verify step it must
  // be; there a draft model may know the drafts, too
  const auto ids = static_cast<int>(row.token_ids.size());
  const bool drafted = verify && ids == 0 && options.draft && row.tokens <= round.draft_length + 1;
  STEPGRAPH_EXPECTS(drafted || (verify     ? ids == std::max(row.tokens - 1, 0)
                                : ids == 0 ? row.tokens <= 1
                                           : ids == row.tokens),
                    "step_executor: request ", row.request, " has ", row.tokens, " tokens but ", ids,
                    verify ? " drafts" : " token ids");
  for (const std::int32_t id : row.token_ids)
    STEPGRAPH_EXPECTS(id >= 0 && id < limits.vocab_size, "step_executor: token id ", id, " of request ",
                      row.request, " is outside the vocabulary of ", limits.vocab_size);
  STEPGRAPH_EXPECTS(row.following < limits.vocab_size && (row.following < 0 || kind == step_kind::extend),
                    "step_executor: request ", row.request, " is followed by token ", row.following, " in a ",
                    to_string(kind), " step");
  STEPGRAPH_EXPECTS(row.parents.empty() || (tree && std::ssize(row.parents) == row.tokens),
                    "step_executor: request ", row.request, " has ", row.parents.size(), " parents for ",
                    row.tokens, " tokens", tree ? "" : " in a step that was defined without trees");
  if (!row.parents.empty()) check_tree(row.parents);
  if (!requests) return;
  STEPGRAPH_EXPECTS((!verify && !row.token_ids.empty()) || row.tokens == 0 || !requests->fresh(row.request),
                    "step_executor: request ", row.request,
                    " has no token yet; its first step must bring one");
  // where the executor finishes requests, a row that comes to the context's end is cut on the device
  STEPGRAPH_EXPECTS((options.finish && row.token_ids.empty()) || (options.finish && verify) ||
                        requests->length_bound(row.request) + row.tokens <= limits.max_context ||
                        guard_off("page-edge"),
                    "step_executor: request ", row.request, " with ", requests->length_bound(row.request),
                    " tokens and ", row.tokens, " more is over max_context ", limits.max_context);
}

/// Refuses a round that cannot be, and says what running it takes. Changes nothing.
step_executor::state::plan step_executor::state::check_round(const step_round& round) {
  STEPGRAPH_EXPECTS(!is_draft(round.kind), "step_executor: a ", to_string(round.kind),
                    " step goes with a round of the target's");
  const auto rows = static_cast<int>(round.rows.size());
  STEPGRAPH_EXPECTS(rows <= limits.max_rows, "step_executor: ", rows, " rows are over max_rows ",
                    limits.max_rows);
  STEPGRAPH_EXPECTS(round.draft_length >= 0 && round.draft_length <= limits.max_draft_tokens,
                    "step_executor: a draft length of ", round.draft_length, " is over max_draft_tokens ",
                    limits.max_draft_tokens);
  STEPGRAPH_EXPECTS(options.draft || !(round.extend_draft || round.draft_length > 0),
                    "step_executor: a round with drafts of a model, but there is none among the options");
  STEPGRAPH_EXPECTS(round.draft_length == 0 || round.kind == step_kind::target_verify,
                    "step_executor: drafts go before a verify step, not before ", to_string(round.kind));
  const bool tree = round.kind == step_kind::target_verify && definition(round.kind, round.variant).tree;
  plan wanted;
  std::int64_t tokens = 0;
  ++checks;
  for (const step_row& row : round.rows) {
    check_row(round, row, tree);
    tokens += row.tokens;
    if (requests) wanted.pages += std::max<std::int64_t>(0, requests->pages_needed(row.request, row.tokens));
  }
  if (is_ragged(round.kind))
    STEPGRAPH_EXPECTS(tokens <= limits.max_step_tokens, "step_executor: ", tokens,
                      " tokens are over max_step_tokens ", limits.max_step_tokens);
  const int count = static_cast<int>(tokens);
  wanted.target = key_for(round.kind, rows, count, round.variant);
  if (round.extend_draft) wanted.after = key_for(step_kind::draft_extend, rows, count, round.draft_variant);
  if (round.draft_length > 1) {
    wanted.before = key_for(step_kind::draft_decode, rows, rows, round.draft_variant);
    wanted.before->steps = round.draft_length - 1;
  }
  return wanted;
}

/// True if `needed` pages are free, taking back what steps known to be done have released.
bool step_executor::state::reclaim(std::int64_t needed) {
  page_allocator& pages = requests->pages();
  if (pages.waiting_pages() > 0) {
    for (const slot& each : slots)
      if (each.sequence > completed && each.done().query()) completed = each.sequence;
    pages.reclaim(completed);
  }
  return pages.free_pages() >= needed;
}

std::optional<int> step_executor::state::take_slot(when_full full) {
  const int index = static_cast<int>((sequence + 1) % slots.size());
  slot& next = slots[index];
  if (next.sequence > completed) {
    if (!next.done().query()) {
      if (full == when_full::would_block) return std::nullopt;
      next.done().synchronize();
    }
    completed = next.sequence;
  }
  if (!next.timed.empty()) read_times(next);
  return index;
}

/// The staging slot for a step that may run now; nothing if it would block.
std::optional<int> step_executor::state::admit(const plan& wanted, when_full full) {
  const std::int64_t pages = wanted.pages;
  if (requests && !reclaim(pages)) {
    page_allocator& pool = requests->pages();
    if (pool.free_pages() + pool.waiting_pages() < pages)
      throw out_of_pages(message("step_executor: the step needs ", pages, " pages, ",
                                 pool.free_pages() + pool.waiting_pages(), " of ", pool.pool_pages(),
                                 " are free; close a request, or raise kv_pages"),
                         pages, pool.free_pages() + pool.waiting_pages());
    if (full == when_full::would_block) return std::nullopt;
    stream.synchronize();
    completed = sequence;
    pool.reclaim(completed);
  }
  return take_slot(full);
}

/// The slot that holds the results of `ticket`.
int step_executor::state::slot_of(step_ticket ticket) const {
  STEPGRAPH_EXPECTS(ticket.executor == id, "step_executor: a ticket of another executor, or of none");
  const int index = static_cast<int>(ticket.sequence % slots.size());
  STEPGRAPH_EXPECTS(slots[index].sequence == ticket.sequence, "step_executor: the results of step ",
                    ticket.sequence, " have been overwritten by step ", slots[index].sequence,
                    "; wait within ", slots.size(), " steps");
  return index;
}

}  // namespace stepgraph
