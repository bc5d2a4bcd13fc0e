#pragma once

#include <cstdint>
#include <span>

namespace stepgraph {

/// Drafts by looking the text up in itself (prompt look-up decoding): the last `longest` down to `shortest`
/// tokens of `history` are sought at an earlier place, the latest first, and what followed there is proposed.
/// Writes to `drafts` and returns how many, 0 if nothing matches. Needs no model; linear in the history.
int prompt_lookup(std::span<const std::int32_t> history, std::span<std::int32_t> drafts, int longest = 3,
                  int shortest = 1);

}  // namespace stepgraph
