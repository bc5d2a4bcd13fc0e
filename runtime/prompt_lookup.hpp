#pragma once

#include <cstdint>
#include <span>

namespace stepgraph {

/// Drafts by looking the text up in itself (prompt look-up decoding): the last `longest` down to `shortest`
/// tokens of `history` are sought at an earlier place, the latest first, and what followed there is proposed.
/// Writes to `drafts` and returns how many, 0 if nothing matches. Needs no model; linear in the history.
int prompt_lookup(std::span<const std::int32_t> history, std::span<std::int32_t> drafts, int longest = 3,
                  int shortest = 1);

/// The same with up to `branches` places, whose continuations differ in their first token: each is a chain of
/// its own from the text on. Each takes an even share of the `drafts` that are left, rounded up; with more branches
/// than drafts there are as many as drafts. `parents` gets the node that each draft follows, 0 for the text itself,
/// i + 1 for drafts[i].
int prompt_lookup_tree(std::span<const std::int32_t> history, std::span<std::int32_t> drafts,
                       std::span<std::int32_t> parents, int branches, int longest = 3, int shortest = 1);

}  // namespace stepgraph
