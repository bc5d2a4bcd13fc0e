#include <algorithm>

#include "graphs/error.hpp"
#include "runtime/loop_state.hpp"

namespace stepgraph {

/// Pages of the longest that a request may become, with what two rounds under way may add.
std::int64_t speculative_loop::state::pages_for(const generation_request& asked) const {
  const step_limits& limits = executor.limits();
  const std::int64_t longest =
      std::ssize(asked.prompt) + asked.max_tokens + 2 * (std::int64_t{options.draft_length} + 1);
  return (std::min(longest, limits.max_context) + limits.page_size - 1) / limits.page_size;
}

/// Lets prompts in, first come first served, while there are rows, lines and pages for them.
void speculative_loop::state::join() {
  const step_limits& limits = executor.limits();
  const auto room = static_cast<std::size_t>(std::min(limits.max_rows, limits.max_requests));
  while (!waiting.empty() && live.size() < room) {
    auto& [id, asked] = *waiting.begin();
    const std::int64_t pages = pages_for(asked);
    if (reserved + pages > limits.kv_pages - 1) return;
    if (asked.sampling.request == 0) asked.sampling.request = id;
    text joined{.pages = pages};
    if (drafts_on_host()) {
      joined.history.reserve(asked.prompt.size() + asked.max_tokens);
      joined.history = asked.prompt;
      joined.drafts.reserve(options.draft_length);
      joined.parents.reserve(options.draft_length + 1);
    }
    // it waits on if there is no line for it
    const auto place = live.emplace(id, std::move(joined)).first;
    try {
      place->second.line = executor.open({.budget = asked.max_tokens, .sampling = asked.sampling});
    } catch (...) {
      live.erase(place);
      throw;
    }
    place->second.asked = std::move(asked);
    reserved += pages;
    waiting.erase(waiting.begin());
  }
}

/// True if a row of `rows` draws its tokens.
bool speculative_loop::state::samples() const {
  return std::ranges::any_of(live, [](const auto& each) { return !is_greedy(each.second.asked.sampling); });
}

/// A place for what is about to be launched; the oldest results are taken if there is none.
speculative_loop::state::launched& speculative_loop::state::next_launched() {
  while (last - first >= ring.size()) take_oldest();
  launched& next = ring[last % ring.size()];
  next.draft_length = 0;
  next.rows.clear();
  next.told = {};
  return next;
}

/// Launches `round`. What the loop knows of its texts changes only here, once the launch was not refused.
void speculative_loop::state::launch(const step_round& round, launched& noted) {
  noted.ticket = options.eager ? executor.run_eager(round) : *executor.replay(round, when_full::wait);
  ++last;
  for (const row_of_text& row : noted.rows) {
    text& one = live.find(row.id)->second;
    one.fed += row.fed;
    if (row.emits) ++one.pending;
  }
}

/// As much of the prompts as one step holds.
void speculative_loop::state::launch_prompts() {
  if (std::ranges::all_of(live, [](const auto& each) { return each.second.prompted(); })) return;
  launched& noted = next_launched();
  noted.round = false;
  rows.clear();
  std::int64_t budget = executor.limits().max_step_tokens;
  for (const auto& [id, one] : live) {
    const std::span<const std::int32_t> rest =
        std::span<const std::int32_t>(one.asked.prompt).subspan(one.fed);
    const auto chunk = static_cast<std::int32_t>(std::min<std::int64_t>(budget, std::ssize(rest)));
    if (chunk == 0) continue;
    budget -= chunk;
    const bool whole = chunk == std::ssize(rest);
    rows.push_back({.request = one.line,
                    .tokens = chunk,
                    .token_ids = rest.first(chunk),
                    .following = whole ? -1 : rest[chunk]});
    noted.rows.push_back({.id = id, .drafted = 0, .fed = chunk, .emits = whole});
  }
  if (rows.empty()) return;  // stopped, while results were taken
  const bool sampled = samples();
  launch({.kind = step_kind::extend,
          .rows = rows,
          .variant = sampled ? options.sampled_variant : options.greedy_variant,
          .extend_draft = drafts_on_device(),
          .draft_variant = sampled ? options.draft_sampled_variant : options.draft_greedy_variant},
         noted);
  ++statistics.prompt_steps;
  for (const row_of_text& row : noted.rows) statistics.prompt_tokens += row.fed;
  prompts_between = true;
}

/// K of the next round: never more than a step has room for, nor one of the policy's that was not captured.
int speculative_loop::state::choose_draft_length(int row_count) {
  if (options.drafts.from == draft_source::where::nowhere) return 0;
  const int wanted = options.choose_draft_length ? options.choose_draft_length(statistics.rounds, row_count)
                     : options.adaptive          ? policy.choose(row_count)
                                                 : options.draft_length;
  STEPGRAPH_EXPECTS(wanted >= 0 && wanted <= options.draft_length, "speculative_loop: a draft length of ",
                    wanted, " was chosen, the most is ", options.draft_length);
  check_captured(wanted);
  const int room = executor.limits().max_step_tokens / row_count - 1;
  return wanted <= room ? wanted : policy.at_most(room);
}

/// Asks for up to `draft_length` drafts of a text, and refuses what no verify step could take.
void speculative_loop::state::propose(generation_id id, text& one, int draft_length) {
  // a chosen draft past the budget is never of use
  const auto left = one.asked.max_tokens - (std::ssize(one.history) - std::ssize(one.asked.prompt)) - 1;
  const std::int64_t context = executor.limits().max_context - executor.length_bound(one.line) - 1;
  const auto most =
      static_cast<int>(std::clamp<std::int64_t>(std::min<std::int64_t>(left, context), 0, draft_length));
  one.drafts.resize(most);
  one.parents.resize(most + 1);
  for (int node = 0; node <= most; ++node) one.parents[node] = node - 1;
  if (most == 0) return;
  const int count = options.drafts.propose(
      one.history, {.tokens = one.drafts, .parents = std::span(one.parents).subspan(1)});
  STEPGRAPH_EXPECTS(count >= 0 && count <= most, "speculative_loop: the drafter says that it proposed ",
                    count, " tokens for text ", id, ", asked for at most ", most);
  one.drafts.resize(count);
  one.parents.resize(count + 1);
  for (int i = 0; i < count; ++i) {
    STEPGRAPH_EXPECTS(one.drafts[i] >= 0 && one.drafts[i] < executor.limits().vocab_size,
                      "speculative_loop: the drafter proposed token ", one.drafts[i], " for text ", id,
                      ", outside the vocabulary of ", executor.limits().vocab_size);
    STEPGRAPH_EXPECTS(!options.drafts.trees || (one.parents[i + 1] >= 0 && one.parents[i + 1] <= i),
                      "speculative_loop: the drafter gave draft ", i, " of text ", id, " the parent ",
                      one.parents[i + 1], ", which must be in [0, ", i, "]");
  }
}

/// The drafts of the next round. Whoever proposes them may stop any text.
void speculative_loop::state::propose_all(int draft_length) {
  for (auto at = live.begin(); at != live.end();) {
    const generation_id id = at->first;
    if (decodes(at->second)) propose(id, at->second, draft_length);
    at = live.upper_bound(id);
  }
}

/// A row of a round: the request's last token, and its drafts or what the device has of them.
step_row speculative_loop::state::row_of(const text& one, int draft_length) const {
  step_row row{.request = one.line, .tokens = 1};
  if (drafts_on_host()) {
    row.tokens += static_cast<std::int32_t>(one.drafts.size());
    row.token_ids = one.drafts;
    if (options.drafts.trees) row.parents = one.parents;
  } else if (drafts_on_device()) {
    row.tokens += draft_length;
  }
  return row;
}

/// One token of each request whose prompt is in, and its drafts.
void speculative_loop::state::launch_round() {
  const auto ready = [&] {
    return static_cast<int>(
        std::ranges::count_if(live, [&](const auto& each) { return decodes(each.second); }));
  };
  if (ready() == 0) return;
  launched& noted = next_launched();
  const int row_count = ready();
  if (row_count == 0) return;  // stopped, while results were taken
  const int draft_length = choose_draft_length(row_count);
  if (drafts_on_host()) propose_all(draft_length);
  // from here to the launch nobody is asked or told anything
  noted.round = true;
  rows.clear();
  int most = 0;
  for (const auto& [id, one] : live) {
    if (!decodes(one)) continue;
    rows.push_back(row_of(one, draft_length));
    const int drafted = rows.back().tokens - 1;
    most = std::max(most, drafted);
    noted.rows.push_back({.id = id, .drafted = drafted, .fed = 0, .emits = true});
  }
  if (rows.empty()) return;  // stopped by the drafter
  noted.draft_length = most;
  const bool sampled = samples(), tree = most > 0 && options.drafts.trees;
  if (!tree)
    for (step_row& row : rows) row.parents = {};
  launch({.kind = most > 0 ? step_kind::target_verify : step_kind::decode,
          .rows = rows,
          .variant = tree      ? (sampled ? options.sampled_tree_variant : options.greedy_tree_variant)
                     : sampled ? options.sampled_variant
                               : options.greedy_variant,
          .draft_length = drafts_on_device() ? most : 0,
          .extend_draft = drafts_on_device(),
          .draft_variant = sampled ? options.draft_sampled_variant : options.draft_greedy_variant},
         noted);
  ++statistics.rounds;
  ++statistics.by_draft_length[draft_length];
  ++statistics.by_proposed[most];
}

}  // namespace stepgraph
