#include <algorithm>

#include "graphs/error.hpp"
#include "runtime/loop_state.hpp"

namespace stepgraph {

/// The first step that the loop needs for sampled texts, or for greedy ones, and the executor has not; else empty.
std::string speculative_loop::state::lacking(bool sampled) const {
  struct needed {
    step_kind kind;
    int variant;
    bool tree = false;
  };
  const int plain = sampled ? options.sampled_variant : options.greedy_variant;
  std::vector<needed> all{{step_kind::decode, plain}, {step_kind::extend, plain}};
  if (drafts_on_host() && options.drafts.trees)
    all.push_back({step_kind::target_verify,
                   sampled ? options.sampled_tree_variant : options.greedy_tree_variant, true});
  else if (drafts_on_host() || drafts_on_device())
    all.push_back({step_kind::target_verify, plain});
  if (drafts_on_device()) {
    const int draft = sampled ? options.draft_sampled_variant : options.draft_greedy_variant;
    all.push_back({step_kind::draft_extend, draft});
    if (policy.at_most(options.draft_length) > 1) all.push_back({step_kind::draft_decode, draft});
  }
  for (const needed& each : all) {
    const auto does = [&](const step_definition& step) {
      return step.kind == each.kind && step.variant == each.variant && (step.sampled || !sampled) &&
             (step.tree || !each.tree);
    };
    if (std::ranges::none_of(executor.steps(), does))
      return message("speculative_loop: the executor has no ", sampled ? "sampled " : "",
                     to_string(each.kind), " step", each.tree ? " for trees" : "", ", variant ",
                     each.variant);
  }
  return {};
}

/// Refuses an executor that the loop cannot work with.
void speculative_loop::state::check_executor() const {
  STEPGRAPH_EXPECTS(executor.finishes(),
                    "speculative_loop: the executor does not finish requests; give executor_options::finish");
  STEPGRAPH_EXPECTS(
      executor.owns_requests(),
      "speculative_loop: the executor's request table is the embedder's; the loop opens and closes "
      "requests itself");
  STEPGRAPH_EXPECTS(options.drafts.from != draft_source::where::device || executor.has_draft(),
                    "speculative_loop: drafts are to come from a model, but the executor has none");
  STEPGRAPH_EXPECTS(options.drafts.from != draft_source::where::host || options.drafts.propose,
                    "speculative_loop: drafts are to come from the host, but there is no function for them");
  // a loop for texts of one kind is one, too; `submit` refuses the other
  const std::string greedy = lacking(false);
  STEPGRAPH_EXPECTS(greedy.empty() || lacking(true).empty(), greedy);
  if (!options.adaptive && !options.choose_draft_length && drafts_on_device())
    check_captured(options.draft_length);
}

/// Refuses a K that there are no graphs for.
void speculative_loop::state::check_captured(int draft_length) const {
  if (policy.at_most(draft_length) == draft_length) return;
  std::string there;
  for (const int length : executor.draft_lengths()) there += message(there.empty() ? "" : ", ", length);
  STEPGRAPH_EXPECTS(false, "speculative_loop: there are no graphs for a draft length of ", draft_length,
                    ", only for ", there, "; see executor_options::draft_lengths");
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

/// Refuses what can never be answered.
void speculative_loop::state::check_request(const generation_request& asked) const {
  const step_limits& limits = executor.limits();
  const auto length = std::ssize(asked.prompt);
  STEPGRAPH_EXPECTS(length > 0, "speculative_loop: the prompt is empty");
  STEPGRAPH_EXPECTS(length < limits.max_context, "speculative_loop: the prompt has ", length,
                    " tokens, a context of ", limits.max_context, " leaves room for ",
                    limits.max_context - 1);
  STEPGRAPH_EXPECTS(asked.max_tokens > 0, "speculative_loop: max_tokens must be positive, got ",
                    asked.max_tokens);
  for (const std::int32_t token : asked.prompt)
    STEPGRAPH_EXPECTS(token >= 0 && token < limits.vocab_size, "speculative_loop: token id ", token,
                      " is outside the vocabulary of ", limits.vocab_size);
  check(asked.sampling);
  const std::string missing = lacking(!is_greedy(asked.sampling));
  STEPGRAPH_EXPECTS(missing.empty(), missing);
  STEPGRAPH_EXPECTS(pages_for(asked) <= limits.kv_pages - 1, "speculative_loop: the request may need ",
                    pages_for(asked), " pages, the pool has ", limits.kv_pages - 1);
}

}  // namespace stepgraph
