#include "examples/llama/scheduler.hpp"

#include <algorithm>

#include "graphs/error.hpp"

namespace stepgraph::llama {

const char* to_string(stop_reason reason) noexcept {
  switch (reason) {
    case stop_reason::none:
      return "running";
    case stop_reason::end_of_turn:
      return "end of turn";
    case stop_reason::token_budget:
      return "token budget";
    case stop_reason::context_limit:
      return "context limit";
    case stop_reason::failed:
      return "failed";
  }
  return "unknown";
}

scheduler::scheduler(step_executor& executor, scheduler_options options)
    : executor_(executor), options_(std::move(options)) {
  draft_statistics_.rounds_by_accepted.resize(executor.limits().max_draft_tokens + 1);
}

void scheduler::add(conversation& joined) {
  const auto most = executor_.limits().max_context - 1;
  STEPGRAPH_EXPECTS(!joined.prompt.empty(), "scheduler: the prompt is empty");
  STEPGRAPH_EXPECTS(static_cast<std::int64_t>(joined.prompt.size()) <= most, "scheduler: the prompt has ",
                    joined.prompt.size(), " tokens, a context of ", most + 1, " leaves room for ", most);
  waiting_.push_back(&joined);
}

/// Lets waiting conversations in while the request table, the rows of a step and the pool have room for them.
void scheduler::admit() {
  const step_limits& limits = executor_.limits();
  const auto room = static_cast<std::size_t>(std::min(limits.max_rows, limits.max_requests));
  std::int64_t free = executor_.free_pages() - static_cast<std::int64_t>(live_.size());
  while (!waiting_.empty() && live_.size() < room) {
    const auto needed = static_cast<std::int64_t>(waiting_.front()->prompt.size()) / limits.page_size + 2;
    if (needed > free && !live_.empty()) return;  // another will leave
    free -= needed;
    live_.push_back(
        {.talk = waiting_.front(), .request = executor_.open(), .fed = 0, .history = {}, .drafts = {}});
    if (options_.draft) live_.back().history = waiting_.front()->prompt;
    waiting_.erase(waiting_.begin());
  }
}

bool scheduler::step() {
  admit();
  if (live_.empty()) return false;
  const bool prompts =
      std::ranges::any_of(live_, [](const live& row) { return row.fed < row.talk->prompt.size(); });
  const step_ticket ticket = run(prompts ? plan_prompts() : plan_decode());
  ++steps_;
  const std::span<const row_result> results = executor_.wait(ticket);
  for (std::size_t r = 0; r < live_.size(); ++r)
    take(live_[r], rows_[r].tokens, results[r], executor_.emitted(ticket, static_cast<int>(r)));
  std::erase_if(live_, [](const live& row) { return row.talk->stopped != stop_reason::none; });
  return true;
}

/// Decoding rows first, then as much of the prompts as a step holds.
step_kind scheduler::plan_prompts() {
  std::int64_t budget = executor_.limits().max_step_tokens;
  for (const live& row : live_) budget -= row.fed == row.talk->prompt.size();
  rows_.clear();
  for (live& row : live_) {
    row.drafts.clear();
    const std::span<const std::int32_t> rest = std::span(row.talk->prompt).subspan(row.fed);
    const auto chunk = static_cast<std::int32_t>(std::clamp<std::int64_t>(budget, 0, std::ssize(rest)));
    budget -= chunk;
    rows_.push_back(rest.empty()
                        ? step_row{.request = row.request, .tokens = 1}
                        : step_row{.request = row.request, .tokens = chunk, .token_ids = rest.first(chunk)});
  }
  return step_kind::extend;
}

/// Every row's next token, with what the drafter proposes.
step_kind scheduler::plan_decode() {
  rows_.clear();
  bool drafted = false;
  for (live& row : live_) {
    propose(row);
    drafted = drafted || !row.drafts.empty();
    rows_.push_back({.request = row.request,
                     .tokens = 1 + static_cast<std::int32_t>(row.drafts.size()),
                     .token_ids = row.drafts});
  }
  return drafted ? step_kind::target_verify : step_kind::decode;
}

/// Drafts for one row, no more than its budget and context can use.
void scheduler::propose(live& row) {
  row.drafts.clear();
  if (!options_.draft) return;
  const step_limits& limits = executor_.limits();
  const std::int64_t budget = row.talk->max_tokens - std::ssize(row.talk->generated) - 1;
  const std::int64_t context = limits.max_context - executor_.length_bound(row.request) - 1;
  // all rows' tokens must fit in one step
  const std::int64_t share = limits.max_step_tokens / std::ssize(live_) - 1;
  const std::int64_t most = std::min({std::int64_t{limits.max_draft_tokens}, budget, context, share});
  if (most <= 0) return;
  row.drafts.resize(most);
  row.drafts.resize(options_.draft(row.history, row.drafts));
}

step_ticket scheduler::run(step_kind kind) {
  return options_.mode == step_mode::eager ? executor_.run_eager(kind, rows_)
                                           : *executor_.replay(kind, rows_, 0, when_full::wait);
}

/// Takes over what a step of `tokens` tokens came to for one row.
void scheduler::take(live& row, std::int32_t tokens, const row_result& result,
                     std::span<const std::int32_t> emitted) {
  conversation& talk = *row.talk;
  if (!row.drafts.empty()) {
    const std::size_t accepted = emitted.empty() ? 0 : emitted.size() - 1;
    ++draft_statistics_.rounds;
    draft_statistics_.drafted += row.drafts.size();
    draft_statistics_.accepted += accepted;
    ++draft_statistics_.rounds_by_accepted[accepted];
  }
  if (row.fed < talk.prompt.size() && result.status == 0) {
    row.fed += tokens;
    prompt_tokens_ += tokens;
    if (row.fed < talk.prompt.size()) return;  // the token after a part of the prompt means nothing
  }
  for (const std::int32_t token : emitted) {
    if (token == options_.end_of_turn) return leave(row, stop_reason::end_of_turn);
    talk.generated.push_back(token);
    if (options_.draft) row.history.push_back(token);
    if (talk.on_token) talk.on_token(token);
    if (static_cast<int>(talk.generated.size()) >= talk.max_tokens)
      return leave(row, stop_reason::token_budget);
  }
  if (result.status != 0) {
    talk.status = static_cast<row_status>(result.status);
    return leave(row, stop_reason::failed);
  }
  if (result.length >= executor_.limits().max_context) leave(row, stop_reason::context_limit);
}

void scheduler::leave(live& row, stop_reason reason) {
  row.talk->stopped = reason;
  executor_.close(row.request);
}

}  // namespace stepgraph::llama
