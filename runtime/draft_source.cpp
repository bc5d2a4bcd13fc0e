#include "runtime/draft_source.hpp"

#include "runtime/prompt_lookup.hpp"

namespace stepgraph {

draft_source draft_source::prompt_lookup(int branches) {
  const auto chain = [](std::span<const std::int32_t> history, draft_proposal proposal) {
    return stepgraph::prompt_lookup(history, proposal.tokens);
  };
  if (branches <= 1) return {.from = where::host, .propose = chain};
  const auto tree = [branches](std::span<const std::int32_t> history, draft_proposal proposal) {
    return prompt_lookup_tree(history, proposal.tokens, proposal.parents, branches);
  };
  return {.from = where::host, .propose = tree, .trees = true};
}

}  // namespace stepgraph
