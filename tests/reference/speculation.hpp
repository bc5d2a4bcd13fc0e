#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/reference/sampling.hpp"

namespace stepgraph::reference {

/// A row's draft tree; a chain where node j's parent is j - 1. Node 0 is the row's last token.
struct draft_tree {
  std::vector<std::int64_t> parents;  // [nodes] the root's is -1
  std::vector<std::int64_t> tokens;   // [nodes]
};

/// Steps from the root.
std::vector<std::int64_t> depths(const std::vector<std::int64_t>& parents);

/// Bit i of a node: i is the node itself or an ancestor.
std::vector<std::uint64_t> ancestor_sets(const std::vector<std::int64_t>& parents);

/// What an accept of one row comes to.
struct accepted {
  std::vector<std::int64_t> path;     // nodes kept, the root first
  std::vector<std::int64_t> emitted;  // drafts kept, then the bonus or the replacement
  bool ended = false;                 // a target on the path was undefined: no bonus
  double margin = 1;                  // least distance of a coin or a draw to another answer
};

/// Greedy walk; no argmax means a NaN among the node's logits.
accepted greedy_accept(const draft_tree& tree, const std::vector<std::optional<std::int64_t>>& argmax);

/// Whose coins: see philox.hpp.
struct coins {
  std::uint64_t seed = 0;
  std::uint64_t request = 0;
  std::int64_t position = 0;  // of the root
  bool same_coin = false;     // the fault: residual draws use the number of the accept coin before them
};

/// Rejection sampling as defined, over whole vectors. `p` of an undefined node is empty; `q` of a chosen
/// draft is empty.
accepted rejection_accept(const draft_tree& tree, const std::vector<std::vector<double>>& p,
                          const std::vector<std::vector<double>>& q, const coins& from);

/// The order in which a row's slots lie in its table after commit: kept nodes, then the others.
std::vector<std::int64_t> committed_order(std::int64_t nodes, const std::vector<std::int64_t>& path);

enum class ending { running, end_of_sequence, token_budget, context_limit, host_stop, fault };

struct finish_input {
  std::vector<std::int64_t> emitted;
  std::vector<std::int64_t> end_ids;
  std::int64_t base = 0;  // tokens in the cache before the step
  std::int64_t max_context = 0;
  std::optional<std::int64_t> budget;  // tokens left
  bool host_stop = false;
  bool fault = false;
};

struct finish_output {
  std::int64_t kept = 0;  // of the emitted
  ending why = ending::running;
};

finish_output finish(const finish_input& in);

}  // namespace stepgraph::reference
