#include <algorithm>
#include <utility>

#include "runtime/executor_state.hpp"

namespace stepgraph {

/// Refuses rows that cannot be, and says what running the others takes. Changes nothing.
step_executor::state::plan step_executor::state::check_rows(step_kind kind, std::span<const step_row> rows,
                                                            int variant) {
  STEPGRAPH_EXPECTS(static_cast<int>(rows.size()) <= limits.max_rows, "step_executor: ", rows.size(),
                    " rows are over max_rows ", limits.max_rows);
  const bool verify = kind == step_kind::target_verify;
  std::int64_t pages = 0, tokens = 0;
  ++checks;
  for (const step_row& row : rows) {
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
    // be
    const auto ids = static_cast<int>(row.token_ids.size());
    STEPGRAPH_EXPECTS(verify     ? ids == std::max(row.tokens - 1, 0)
                      : ids == 0 ? row.tokens <= 1
                                 : ids == row.tokens,
                      "step_executor: request ", row.request, " has ", row.tokens, " tokens but ", ids,
                      verify ? " drafts" : " token ids");
    for (const std::int32_t id : row.token_ids)
      STEPGRAPH_EXPECTS(id >= 0 && id < limits.vocab_size, "step_executor: token id ", id, " of request ",
                        row.request, " is outside the vocabulary of ", limits.vocab_size);
    tokens += row.tokens;
    if (!requests) continue;
    STEPGRAPH_EXPECTS((!verify && !row.token_ids.empty()) || row.tokens == 0 || !requests->fresh(row.request),
                      "step_executor: request ", row.request,
                      " has no token yet; its first step must bring one");
    STEPGRAPH_EXPECTS(
        requests->length_bound(row.request) + row.tokens <= limits.max_context || guard_off("page-edge"),
        "step_executor: request ", row.request, " with ", requests->length_bound(row.request), " tokens and ",
        row.tokens, " more is over max_context ", limits.max_context);
    pages += std::max<std::int64_t>(0, requests->pages_needed(row.request, row.tokens));
  }
  if (is_ragged(kind))
    STEPGRAPH_EXPECTS(tokens <= limits.max_step_tokens, "step_executor: ", tokens,
                      " tokens are over max_step_tokens ", limits.max_step_tokens);
  return {key_for(kind, static_cast<int>(rows.size()), static_cast<int>(tokens), variant), pages};
}

/// True if `needed` pages are free, taking back what steps known to be done have released.
bool step_executor::state::reclaim(std::int64_t needed) {
  page_allocator& pages = requests->pages();
  if (pages.waiting_pages() > 0) {
    for (const slot& each : slots)
      if (each.sequence > completed && each.done.query()) completed = each.sequence;
    pages.reclaim(completed);
  }
  return pages.free_pages() >= needed;
}

std::optional<int> step_executor::state::take_slot(when_full full) {
  const int index = static_cast<int>((sequence + 1) % slots.size());
  slot& next = slots[index];
  if (next.sequence == 0 || next.sequence <= completed) return index;
  if (!next.done.query()) {
    if (full == when_full::would_block) return std::nullopt;
    next.done.synchronize();
  }
  completed = next.sequence;
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

/// Writes the step into its staging buffer and enqueues the copy.
void step_executor::state::stage(const step_key& key, std::span<const step_row> rows, int slot) {
  const detail::staging_layout layout{key.rows, key.tokens};
  std::byte* const block = staging.data() + staging_bytes * slot;
  const auto at = [&](std::size_t offset) { return reinterpret_cast<std::int32_t*>(block + offset); };
  std::int32_t* token = at(layout.token_ids());
  auto* const patches = reinterpret_cast<page_patch*>(block + layout.patches());
  int patch_count = 0;
  slots[slot].growth.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const step_row& row = rows[r];
    at(layout.requests())[r] = row.request;
    at(layout.query_counts())[r] = row.tokens;
    // a request's first step tells the device that its line starts empty
    at(layout.lengths())[r] = requests && requests->fresh(row.request) ? 0 : -1;
    // -1: the request's last token, which stands before the ids given or instead of one
    const int known = static_cast<int>(row.token_ids.size());
    for (int j = 0; j < row.tokens - known; ++j) *token++ = -1;
    for (int j = 0; j < known; ++j) *token++ = row.token_ids[j];
    if (!requests) continue;
    slots[slot].growth.push_back(requests->state_of(row.request));
    patch_count += requests->grow(row.request, row.tokens, patches + patch_count);
  }
  *reinterpret_cast<staged_header*>(block) = {.live_rows = static_cast<std::int32_t>(rows.size()),
                                              .patches = patch_count,
                                              .result_slot = slot,
                                              .reserved = 0};
  if (options.poison) poison();
  stream.copy(buffers.staging, block, layout.patches() + sizeof(page_patch) * patch_count);
}

void step_executor::state::count(bucket_statistics& counted, const step_key& key,
                                 std::span<const step_row> rows) {
  ++counted.replays;
  counted.live_rows += rows.size();
  counted.captured_pages += static_cast<std::uint64_t>(key.rows) * buffers.page_columns;
  for (const step_row& row : rows) {
    counted.live_tokens += row.tokens;
    if (requests) counted.live_pages += pages_of(requests->length_bound(row.request), page_shift);
  }
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
