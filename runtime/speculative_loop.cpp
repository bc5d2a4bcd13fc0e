#include "runtime/speculative_loop.hpp"

#include <algorithm>
#include <utility>

#include "graphs/error.hpp"
#include "graphs/nvtx.hpp"
#include "runtime/loop_state.hpp"

namespace stepgraph {

speculative_loop::state::state(step_executor& executor, speculative_options wanted)
    : executor(executor),
      options(std::move(wanted)),
      policy(std::max(options.draft_length, 0),
             drafts_on_device() && !options.eager ? executor.draft_lengths() : std::vector<int>{}) {
  check_limits(executor.limits());
  check_executor();
  statistics.by_accepted.resize(options.draft_length + 1);
  statistics.by_draft_length.resize(options.draft_length + 1);
  statistics.by_proposed.resize(options.draft_length + 1);
  make_ring(executor.limits().in_flight, executor.limits().max_rows);
}

/// Nothing is in flight.
void speculative_loop::state::make_ring(int in_flight, int max_rows) {
  std::vector<launched> made(in_flight);
  for (launched& each : made) each.rows.reserve(max_rows);
  rows.reserve(max_rows);
  ring = std::move(made);
  first = last = 0;
}

/// Ends a text: its line and pages go back, its owner is told. Its functions stay, for one of them may be running.
void speculative_loop::state::end(generation_id id, const generation_end& how) {
  const auto found = live.find(id);
  executor.close(found->second.line);
  reserved -= found->second.pages;
  const text& gone = ended.insert(live.extract(found)).position->second;
  if (gone.asked.on_end) gone.asked.on_end(how);
}

/// What a row says of drafts and emitted tokens, once.
void speculative_loop::state::count_row(const row_of_text& row, const row_result& result, int emitted,
                                        bool round) {
  if (row.emits) --live.find(row.id)->second.pending;
  statistics.emitted += emitted;
  if (!round || emitted == 0) return;
  ++statistics.row_rounds;
  if (row.drafted == 0) return;
  const int accepted = std::min(emitted - 1, row.drafted);
  statistics.drafted += row.drafted;
  statistics.accepted += accepted;
  ++statistics.by_accepted[accepted];
  // a text that ended here says nothing of the drafts that were cut
  if (static_cast<finish_reason>(result.reason) == finish_reason::running)
    policy.note_row(row.drafted, accepted);
}

/// Hands out what is left of the next row of `step`. Whoever is told may stop this text or another, or throw: what it
/// was told then counts as told.
void speculative_loop::state::take_row(launched& step, const row_result& result,
                                       std::span<const std::int32_t> emitted) {
  const row_of_text& row = step.rows[step.told.row];
  int& told = step.told.tokens;
  if (told < 0 && live.contains(row.id)) {
    count_row(row, result, static_cast<int>(emitted.size()), step.round);
    told = 0;
  }
  for (auto found = live.find(row.id); found != live.end(); found = live.find(row.id)) {
    if (told == std::ssize(emitted)) {
      if (static_cast<finish_reason>(result.reason) != finish_reason::running)
        end(row.id, {.reason = static_cast<finish_reason>(result.reason),
                     .status = static_cast<row_status>(result.status)});
      return;
    }
    text& one = found->second;
    const std::int32_t token = emitted[told++];
    if (drafts_on_host()) one.history.push_back(token);
    if (one.asked.on_token) one.asked.on_token(token);
  }
}

/// A round's time, from result to result.
void speculative_loop::state::note_time(const launched& step) {
  if (!step.round) return;
  const auto now = clock::now();
  if (last_result && !prompts_between && options.adaptive)
    policy.note_round(step.draft_length, static_cast<int>(step.rows.size()),
                      std::chrono::duration<double>(now - *last_result).count());
  last_result = now;
  prompts_between = false;
}

/// Waits for the oldest step's results and hands them out; goes on where an exception of a callback left them.
void speculative_loop::state::take_oldest() {
  launched& oldest = ring[first % ring.size()];
  const std::span<const row_result> results = executor.wait(oldest.ticket);
  if (!std::exchange(oldest.told.begun, true)) note_time(oldest);
  for (std::size_t& row = oldest.told.row; row < oldest.rows.size(); ++row, oldest.told.tokens = -1)
    take_row(oldest, results[row], executor.emitted(oldest.ticket, static_cast<int>(row)));
  ++first;
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
  const state::call inside(*state_);
  state& s = *state_;
  s.check_request(request);
  const generation_id id = s.next_id++;
  s.waiting.emplace(id, std::move(request));
  return id;
}

void speculative_loop::stop(generation_id id) {
  const state::call inside(*state_);
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
  const state::call inside(*state_, "step");
  const nvtx_range range("stepgraph round");
  state& s = *state_;
  // what an exception kept back is told before all else; and drafts from the host are of a text that must be known
  const bool interrupted = std::exchange(s.interrupted, true);
  if (interrupted) s.last_result.reset();
  if (interrupted || s.drafts_on_host())
    while (s.first < s.last) s.take_oldest();
  s.join();
  const std::uint64_t before = s.last;
  s.launch_prompts();
  s.launch_round();
  const bool ahead = s.options.run_ahead && s.last > before && !s.drafts_on_host();
  while (s.first < (ahead ? before : s.last)) s.take_oldest();
  s.interrupted = false;
  return !s.live.empty() || !s.waiting.empty() || s.first < s.last;
}

void speculative_loop::recapture(const step_limits& limits, std::optional<bucket_policy> row_buckets,
                                 std::optional<bucket_policy> token_buckets) {
  const state::call inside(*state_, "recapture");
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
