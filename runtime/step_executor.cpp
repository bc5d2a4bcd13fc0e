#include "runtime/step_executor.hpp"

#include <algorithm>
#include <bit>

#include "graphs/nvtx.hpp"
#include "runtime/executor_checks.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {

step_executor::step_executor(device where, const step_limits& limits, const kv_layout& layout,
                             std::vector<step_definition> steps, executor_options options) {
  detail::check_executor(where, limits, layout, steps, options);
  state_ = std::make_unique<state>(where, limits, std::move(steps), std::move(options));
  state_->allocate(layout);
}

step_executor::~step_executor() = default;
step_executor::step_executor(step_executor&&) noexcept = default;
step_executor& step_executor::operator=(step_executor&&) noexcept = default;

std::span<const capture_report> step_executor::captures() const {
  return state_->reports;
}

request_id step_executor::open(const request_settings& settings) {
  const one_thread guard(state_->busy);
  STEPGRAPH_EXPECTS(state_->requests, "step_executor::open: the request table is the embedder's");
  STEPGRAPH_EXPECTS(settings.budget > 0, "step_executor::open: the budget must be positive, got ",
                    settings.budget);
  check(settings.sampling);
  return state_->requests->open(settings);
}

void step_executor::close(request_id request) {
  const one_thread guard(state_->busy);
  STEPGRAPH_EXPECTS(state_->requests, "step_executor::close: the request table is the embedder's");
  state_->requests->close(request, state_->sequence);
}

void step_executor::restart(request_id request) {
  const one_thread guard(state_->busy);
  detail::refuse_in_capture("a restart");
  STEPGRAPH_EXPECTS(!state_->requests,
                    "step_executor::restart: the request table is the executor's; open a request");
  STEPGRAPH_EXPECTS(request >= 0 && request < state_->limits.max_requests, "step_executor::restart: request ",
                    request, " is outside the table of ", state_->limits.max_requests);
  const request_state& state = state_->buffers.state;
  const auto fill = [&](auto* lines, int value) {  // null where the executor has no use for them
    if (lines) state_->stream.fill(lines + request, value, sizeof(*lines));
  };
  fill(state.finished, 0);
  fill(state.budget, 0x7f);  // without a bound
  fill(state.first_draft, 0xff);
  fill(state.first_ranked, 0);
}

std::optional<step_ticket> step_executor::replay(step_kind kind, std::span<const step_row> rows, int variant,
                                                 when_full full) {
  return replay(step_round{.kind = kind, .rows = rows, .variant = variant}, full);
}

std::optional<step_ticket> step_executor::replay(const step_round& round, when_full full) {
  const one_thread guard(state_->busy);
  const nvtx_range range("stepgraph replay");
  state& s = *state_;
  if (guard_off("alternate")) s.stream.synchronize();
  const state::plan wanted = s.check_round(round);
  const auto captured = [&](const step_key& key) -> state::captured& {
    const auto found = s.captures.find(key);
    STEPGRAPH_EXPECTS(
        found != s.captures.end(), "step_executor: no capture for ", to_string(key),
        s.captures.empty() ? "; call capture() first" : "; is its kind and variant among the steps?");
    return found->second;
  };
  for (const auto& key : {wanted.before, std::optional(wanted.target), wanted.after})
    if (key) captured(*key);
  const std::optional<int> slot = s.admit(wanted, full);
  if (!slot) {
    ++s.statistics.would_block;
    return std::nullopt;
  }
  const step_ticket ticket =
      s.run(wanted, round, *slot, [&](const step_key& key) { captured(key).exec.launch(s.stream); });
  s.count(wanted, round.rows);
  return ticket;
}

step_ticket step_executor::run_eager(step_kind kind, std::span<const step_row> rows, int variant) {
  return run_eager(step_round{.kind = kind, .rows = rows, .variant = variant});
}

step_ticket step_executor::run_eager(const step_round& round) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  s.definition(round.kind, round.variant);
  const state::plan wanted = s.check_round(round);
  const int slot = *s.admit(wanted, when_full::wait);
  const step_ticket ticket = s.run(
      wanted, round, slot, [&](const step_key& key) { s.enqueue(key, s.definition(key.kind, key.variant)); });
  ++s.statistics.eager_steps;
  return ticket;
}

bool step_executor::table_read(step_ticket ticket) const {
  STEPGRAPH_EXPECTS(state_->options.read_fence,
                    "step_executor::table_read: needs executor_options::read_fence");
  STEPGRAPH_EXPECTS(ticket.executor == state_->id, "step_executor: a ticket of another executor, or of none");
  return __atomic_load_n(state_->read_fence, __ATOMIC_ACQUIRE) >= ticket.sequence;
}

bool step_executor::ready(step_ticket ticket) const {
  const one_thread guard(state_->busy);
  const state& s = *state_;
  STEPGRAPH_EXPECTS(ticket.executor == s.id, "step_executor: a ticket of another executor, or of none");
  return ticket.sequence <= s.completed || s.slots[s.slot_of(ticket)].results.query();
}

std::span<const row_result> step_executor::wait(step_ticket ticket) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  const int index = s.slot_of(ticket);
  state::slot& slot = s.slots[index];
  if (ticket.sequence > s.completed && !slot.results.query()) slot.results.synchronize();
  const std::span<const row_result> results(s.results_of(index), static_cast<std::size_t>(slot.rows));
  if (s.requests)
    for (std::size_t row = 0; row < results.size(); ++row)
      s.requests->settle(slot.requests[row], slot.marks[row], results[row].length);
  return results;
}

std::span<const std::int32_t> step_executor::emitted(step_ticket ticket, int row) {
  const std::span<const row_result> results = wait(ticket);
  STEPGRAPH_EXPECTS(row >= 0 && row < std::ssize(results), "step_executor::emitted: row ", row, " of ",
                    results.size());
  const state& s = *state_;
  const auto line = static_cast<std::size_t>(&results[row] - s.results.data());
  const auto count = static_cast<std::size_t>(results[row].count);
  return s.result_tokens.subspan(line * s.buffers.accepted.stride, count);
}

std::optional<fault_record> step_executor::fault() const {
  if (__atomic_load_n(&state_->faults->status, __ATOMIC_ACQUIRE) == 0) return std::nullopt;
  return *state_->faults;
}

void step_executor::reset_fault() {
  const one_thread guard(state_->busy);
  state_->stream.synchronize();
  *state_->faults = {};
  state_->stream.fill(state_->buffers.fault_taken, 0, sizeof(std::int32_t));
}

device step_executor::where() const {
  return state_->where;
}
stream_ref step_executor::stream() const {
  return state_->stream;
}
const step_limits& step_executor::limits() const {
  return state_->limits;
}
const kv_cache_view& step_executor::kv_cache() const {
  return state_->buffers.kv;
}
const executor_statistics& step_executor::statistics() const {
  const one_thread guard(state_->busy);
  // the oldest first: a gap lies between one step and the next
  const std::size_t slots = state_->slots.size();
  for (std::size_t i = 1; i <= slots; ++i) {
    state::slot& each = state_->slots[(state_->sequence + i) % slots];
    if (!each.timed.empty() && each.done().query()) state_->read_times(each);
  }
  return state_->statistics;
}
void step_executor::reset_times() {
  const one_thread guard(state_->busy);
  for (state::slot& each : state_->slots) each.timed.clear();
  step_times& all = state_->statistics.times;
  std::vector<node_time> nodes[step_times::kinds];
  for (int kind = 0; kind < step_times::kinds; ++kind)
    for (const node_time& each : all.nodes[kind]) nodes[kind].push_back({.name = each.name, .time = {}});
  all = {};
  std::ranges::move(nodes, all.nodes);
}
std::span<const carving_info> step_executor::carvings() const {
  return state_->carvings;
}
std::int64_t step_executor::free_pages() const {
  const one_thread guard(state_->busy);
  return state_->requests ? state_->requests->pages().free_pages() : 0;
}

std::int64_t step_executor::length_bound(request_id request) const {
  const one_thread guard(state_->busy);
  STEPGRAPH_EXPECTS(state_->requests, "step_executor::length_bound: the request table is the embedder's");
  state_->requests->expect_open(request);
  return state_->requests->length_bound(request);
}

std::span<const step_definition> step_executor::steps() const {
  return state_->steps;
}
bool step_executor::owns_requests() const {
  return state_->requests.has_value();
}
bool step_executor::has_draft() const {
  return state_->options.draft.has_value();
}
std::vector<int> step_executor::draft_lengths() const {
  if (!has_draft() || state_->limits.max_draft_tokens < 1) return {};
  std::vector<int> lengths{1};
  for (const int steps : state_->step_counts(step_kind::draft_decode)) lengths.push_back(steps + 1);
  return lengths;
}
bool step_executor::finishes() const {
  return state_->options.finish.has_value();
}

}  // namespace stepgraph
