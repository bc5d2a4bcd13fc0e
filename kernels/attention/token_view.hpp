#pragma once

#include <cstdint>

#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::detail {

STEPGRAPH_HD int count_bits(std::uint64_t word) {
#if defined(__CUDA_ARCH__)
  return __popcll(word);
#else
  return __builtin_popcountll(word);
#endif
}

/// Which cached positions one query token sees: [begin, end), and of the 64 positions from `base` on, where
/// this step's tokens lie, those in `nodes`. A chain needs no nodes: its `end` is the causal length.
///
/// Positions in a tree are base + depth. Ancestors form one path with parents before children, so a window of
/// w keeps the w highest bits of the mask, and no other token's mask is needed.
struct token_view {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t base = 0;  // tokens before this step; may be negative for a fresh row
  std::uint64_t nodes = 0;

  /// Token `j` of a row whose `base` is given; `mask` is its word of ancestors, or null in a chain.
  STEPGRAPH_HD static token_view make(std::int32_t base, int j, std::int32_t window,
                                      const std::uint64_t* mask) {
    token_view view;
    view.base = base;
    view.end = base + j + 1;
    std::int32_t position = base + j;
    if (mask) {
      view.end = base;
      view.nodes = j < 63 ? *mask & ((std::uint64_t{2} << j) - 1) : *mask;
      position = base + count_bits(view.nodes) - 1;
      if (window > 0)
        while (count_bits(view.nodes) > window) view.nodes &= view.nodes - 1;
      // a fresh row's first tokens are not in the cache
      if (base < 0) view.nodes = base > -64 ? view.nodes >> -base << -base : 0;
    }
    if (view.end < 0) view.end = 0;
    if (window > 0 && position + 1 > window) view.begin = position + 1 - window;
    return view;
  }

  STEPGRAPH_HD bool sees(std::int32_t position) const {
    if (position >= begin && position < end) return true;
    const std::int32_t node = position - base;
    return node >= 0 && node < 64 && (nodes >> node & 1);
  }

  /// Bit i: whether position `first + i` is seen.
  STEPGRAPH_HD std::uint64_t sees_64(std::int32_t first) const {
    const std::int32_t from = begin - first, to = end - first, node = base - first;
    std::uint64_t seen = to >= 64 ? ~std::uint64_t{0} : to > 0 ? (std::uint64_t{1} << to) - 1 : 0;
    if (from > 0) seen = from < 64 ? seen >> from << from : 0;
    if (node > -64 && node < 64) seen |= node >= 0 ? nodes << node : nodes >> -node;
    return seen;
  }
};

}  // namespace stepgraph::detail
