#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace stepgraph {

/// Drafts for one request: `tokens` may follow its text, node i + 1 of the verify step holding tokens[i].
/// `parents` says which node each follows (0: the text itself); as given it is a chain, 0, 1, 2, ...
struct draft_proposal {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> parents;
};

/// Proposes what may follow `history` (prompt and emitted tokens) on the host: writes to `proposal`, returns
/// how many, from 0 to `proposal.tokens.size()`; all must be in the vocabulary, and `parents[i]` in [0, i]. Parents
/// other than a chain's need verify steps for trees.
using host_drafter = std::function<int(std::span<const std::int32_t> history, draft_proposal proposal)>;

/// Where a loop's drafts come from.
struct draft_source {
  enum class where { nowhere, host, device };
  where from = where::nowhere;
  host_drafter propose{};  // on the host; needs each round's text, so such rounds are waited for
  bool trees = false;      // it branches

  static draft_source none() { return {}; }
  /// Looks the text up in itself; `branches` over 1 proposes several continuations as a tree.
  static draft_source prompt_lookup(int branches = 1);
  /// The executor's draft model; drafts never leave the device.
  static draft_source model() { return {.from = where::device, .propose = {}, .trees = false}; }
};

}  // namespace stepgraph
