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

scheduler::scheduler(step_executor& executor, std::int32_t end_of_turn, step_mode mode)
    : executor_(executor), end_of_turn_(end_of_turn), mode_(mode) {}

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
    live_.push_back({.talk = waiting_.front(), .request = executor_.open(), .fed = 0});
    waiting_.erase(waiting_.begin());
  }
}

bool scheduler::step() {
  admit();
  if (live_.empty()) return false;
  std::int64_t budget = executor_.limits().max_step_tokens;
  bool prompts = false;
  for (const live& row : live_) {
    prompts = prompts || row.fed < row.talk->prompt.size();
    if (row.fed == row.talk->prompt.size()) --budget;  // decoding rows go first
  }
  rows_.clear();
  for (const live& row : live_) {
    const std::span<const std::int32_t> rest = std::span(row.talk->prompt).subspan(row.fed);
    if (rest.empty()) {
      rows_.push_back({.request = row.request, .tokens = 1});
      continue;
    }
    const auto chunk = static_cast<std::int32_t>(std::clamp<std::int64_t>(budget, 0, std::ssize(rest)));
    budget -= chunk;
    rows_.push_back({.request = row.request, .tokens = chunk, .token_ids = rest.first(chunk)});
  }
  const std::span<const row_result> results = run(prompts ? step_kind::extend : step_kind::decode);
  ++steps_;
  for (std::size_t r = 0; r < live_.size(); ++r) take(live_[r], rows_[r].tokens, results[r]);
  std::erase_if(live_, [](const live& row) { return row.talk->stopped != stop_reason::none; });
  return true;
}

std::span<const row_result> scheduler::run(step_kind kind) {
  return executor_.wait(mode_ == step_mode::eager ? executor_.run_eager(kind, rows_)
                                                  : *executor_.replay(kind, rows_, 0, when_full::wait));
}

/// Takes over what a step came to for one row.
void scheduler::take(live& row, std::int32_t chunk, const row_result& result) {
  conversation& talk = *row.talk;
  if (result.status != 0) {
    talk.status = static_cast<row_status>(result.status);
    return leave(row, stop_reason::failed);
  }
  if (row.fed < talk.prompt.size()) {
    row.fed += chunk;
    prompt_tokens_ += chunk;
    if (row.fed < talk.prompt.size()) return;  // the token after a part of the prompt means nothing
  }
  if (result.token == end_of_turn_) return leave(row, stop_reason::end_of_turn);
  talk.generated.push_back(result.token);
  if (talk.on_token) talk.on_token(result.token);
  if (static_cast<int>(talk.generated.size()) >= talk.max_tokens)
    return leave(row, stop_reason::token_budget);
  if (result.length >= executor_.limits().max_context) leave(row, stop_reason::context_limit);
}

void scheduler::leave(live& row, stop_reason reason) {
  row.talk->stopped = reason;
  executor_.close(row.request);
}

}  // namespace stepgraph::llama
