#include "runtime/speculative_loop.hpp"

#include <algorithm>

#include "graphs/error.hpp"
#include "graphs/nvtx.hpp"
#include "runtime/loop_state.hpp"

namespace stepgraph {

speculative_loop::state::state(step_executor& executor, speculative_options wanted)
    : executor(executor),
      options(std::move(wanted)),
      policy(std::max(options.draft_length, 0),
             drafts_on_device() ? executor.draft_lengths() : std::vector<int>{}) {
  check_limits(executor.limits());
  STEPGRAPH_EXPECTS(executor.finishes(),
                    "speculative_loop: the executor does not finish requests; give executor_options::finish");
  STEPGRAPH_EXPECTS(options.drafts.from != draft_source::where::device || executor.has_draft(),
                    "speculative_loop: drafts are to come from a model, but the executor has none");
  STEPGRAPH_EXPECTS(options.drafts.from != draft_source::where::host || options.drafts.propose,
                    "speculative_loop: drafts are to come from the host, but there is no function for them");
  statistics.by_accepted.resize(options.draft_length + 1);
  statistics.by_draft_length.resize(options.draft_length + 1);
  make_ring(executor.limits().in_flight, executor.limits().max_rows);
}

/// Refuses limits that the loop does not fit in.
void speculative_loop::state::check_limits(const step_limits& limits) const {
  STEPGRAPH_EXPECTS(options.draft_length >= 0 && options.draft_length <= limits.max_draft_tokens,
                    "speculative_loop: draft_length ", options.draft_length, " is over max_draft_tokens ",
                    limits.max_draft_tokens);
  STEPGRAPH_EXPECTS(limits.in_flight >= 2,
                    "speculative_loop: running ahead needs in_flight of 2 or more, got ", limits.in_flight);
  STEPGRAPH_EXPECTS(std::ssize(live) <= limits.max_rows, "speculative_loop: ", live.size(),
                    " texts are live, over max_rows ", limits.max_rows);
}

/// Nothing is in flight.
void speculative_loop::state::make_ring(int in_flight, int max_rows) {
  std::vector<launched> made(in_flight);
  for (launched& each : made) each.rows.reserve(max_rows);
  rows.reserve(max_rows);
  ring = std::move(made);
  first = last = 0;
}

/// Ends a text: its line and pages go back, its owner is told.
void speculative_loop::state::end(generation_id id, const generation_end& how) {
  const auto found = live.find(id);
  executor.close(found->second.line);
  reserved -= found->second.pages;
  const auto told = std::move(found->second.asked.on_end);
  live.erase(found);
  if (told) told(how);
}

/// Hands out what one row emitted. Whoever is told may stop this text or another.
void speculative_loop::state::take_row(const row_of_text& row, const row_result& result,
                                       std::span<const std::int32_t> emitted, bool round) {
  auto found = live.find(row.id);
  if (found == live.end()) return;  // stopped meanwhile
  if (row.emits) --found->second.pending;
  const auto count = static_cast<int>(emitted.size());
  const auto reason = static_cast<finish_reason>(result.reason);
  statistics.emitted += count;
  if (round && count > 0) {
    ++statistics.row_rounds;
    if (row.drafted > 0) {
      const int accepted = std::min(count - 1, row.drafted);
      statistics.drafted += row.drafted;
      statistics.accepted += accepted;
      ++statistics.by_accepted[accepted];
      // a text that ended here says nothing of the drafts that were cut
      if (reason == finish_reason::running) policy.note_row(row.drafted, accepted);
    }
  }
  for (const std::int32_t token : emitted) {
    if (drafts_on_host()) found->second.history.push_back(token);
    if (!found->second.asked.on_token) continue;
    found->second.asked.on_token(token);
    found = live.find(row.id);
    if (found == live.end()) return;
  }
  if (reason != finish_reason::running)
    end(row.id, {.reason = reason, .status = static_cast<row_status>(result.status)});
}

/// Waits for the oldest step's results and hands them out.
void speculative_loop::state::take_oldest() {
  launched& oldest = ring[first % ring.size()];
  const std::span<const row_result> results = executor.wait(oldest.ticket);
  if (oldest.round) {
    const auto now = clock::now();
    if (last_result && !prompts_between && options.adaptive)
      policy.note_round(oldest.draft_length, static_cast<int>(oldest.rows.size()),
                        std::chrono::duration<double>(now - *last_result).count());
    last_result = now;
    prompts_between = false;
  }
  ++first;  // before anyone is told: they may have more to launch
  for (std::size_t r = 0; r < oldest.rows.size(); ++r)
    take_row(oldest.rows[r], results[r], executor.emitted(oldest.ticket, static_cast<int>(r)), oldest.round);
}

speculative_loop::speculative_loop(step_executor& executor, speculative_options options)
    : state_(std::make_unique<state>(executor, std::move(options))) {}

speculative_loop::~speculative_loop() {
  try {
    for (auto& [id, one] : state_->live) state_->executor.close(one.line);
  } catch (...) {  // a destructor never throws
  }
}

generation_id speculative_loop::submit(generation_request request) {
  state& s = *state_;
  const step_limits& limits = s.executor.limits();
  const auto length = std::ssize(request.prompt);
  STEPGRAPH_EXPECTS(length > 0, "speculative_loop: the prompt is empty");
  STEPGRAPH_EXPECTS(length < limits.max_context, "speculative_loop: the prompt has ", length,
                    " tokens, a context of ", limits.max_context, " leaves room for ",
                    limits.max_context - 1);
  STEPGRAPH_EXPECTS(request.max_tokens > 0, "speculative_loop: max_tokens must be positive, got ",
                    request.max_tokens);
  for (const std::int32_t token : request.prompt)
    STEPGRAPH_EXPECTS(token >= 0 && token < limits.vocab_size, "speculative_loop: token id ", token,
                      " is outside the vocabulary of ", limits.vocab_size);
  check(request.sampling);
  STEPGRAPH_EXPECTS(s.pages_for(request) <= limits.kv_pages - 1, "speculative_loop: the request may need ",
                    s.pages_for(request), " pages, the pool has ", limits.kv_pages - 1);
  const generation_id id = s.next_id++;
  s.waiting.emplace(id, std::move(request));
  return id;
}

void speculative_loop::stop(generation_id id) {
  state& s = *state_;
  if (const auto found = s.waiting.find(id); found != s.waiting.end()) {
    const auto told = std::move(found->second.on_end);
    s.waiting.erase(found);
    if (told) told({.reason = finish_reason::host_stop});
    return;
  }
  if (s.live.contains(id)) s.end(id, {.reason = finish_reason::host_stop});
}

bool speculative_loop::step() {
  const nvtx_range range("stepgraph round");
  state& s = *state_;
  // drafts from the host are of a text that must be known
  if (s.drafts_on_host())
    while (s.first < s.last) s.take_oldest();
  s.join();
  const std::uint64_t before = s.last;
  s.launch_prompts();
  s.launch_round();
  const bool ahead = s.options.run_ahead && s.last > before && !s.drafts_on_host();
  while (s.first < (ahead ? before : s.last)) s.take_oldest();
  return !s.live.empty() || !s.waiting.empty() || s.first < s.last;
}

void speculative_loop::recapture(const step_limits& limits, std::optional<bucket_policy> row_buckets,
                                 std::optional<bucket_policy> token_buckets) {
  state& s = *state_;
  while (s.first < s.last) s.take_oldest();  // their tickets end
  s.check_limits(limits);
  s.last_result.reset();  // a capture says nothing of a round's time
  const step_limits before = s.executor.limits();
  // for both limits, as long as it is open which of them hold
  s.make_ring(std::min(before.in_flight, limits.in_flight), std::max(before.max_rows, limits.max_rows));
  s.executor.recapture(limits, std::move(row_buckets), std::move(token_buckets));
  s.make_ring(limits.in_flight, limits.max_rows);
}

const speculation_statistics& speculative_loop::statistics() const noexcept {
  return state_->statistics;
}

}  // namespace stepgraph
