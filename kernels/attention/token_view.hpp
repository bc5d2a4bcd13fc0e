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

/// Which cached positions one query token sees: [begin, end), and past `base`, where this step's tokens lie,
/// only those of its mask. A chain is the mask of all ones.
///
/// Positions in a tree are base + depth. Ancestors form one path with parents before children, so an
/// ancestor's depth is the number of mask bits below its own, and no other token's mask is needed.
struct token_view {
  std::int32_t begin = 0;
  std::int32_t end = 0;   // causal length, c
  std::int32_t base = 0;  // tokens before this step; may be negative for a fresh row
  std::int32_t window = 0;
  std::uint64_t ancestors = 0;
  bool tree = false;

  /// Token `j` of a row whose `base` is given; `mask` is its word of ancestors, read in a tree alone.
  STEPGRAPH_HD static token_view make(std::int32_t base, int j, std::int32_t window,
                                      const std::uint64_t* mask) {
    token_view view;
    view.base = base;
    view.window = window;
    view.end = base + j + 1 > 0 ? base + j + 1 : 0;
    std::int32_t position = base + j;
    if (mask) {
      view.tree = true;
      view.ancestors = j < 63 ? *mask & ((std::uint64_t{2} << j) - 1) : *mask;
      position = base + count_bits(view.ancestors) - 1;
    }
    if (window > 0 && position + 1 > window) view.begin = position + 1 - window;
    return view;
  }

  STEPGRAPH_HD bool sees(std::int32_t position) const {
    if (position >= end) return false;
    if (!tree || position < base) return position >= begin;
    const int node = position - base;
    if (node > 63 || !(ancestors >> node & 1)) return false;
    return window <= 0 || count_bits(ancestors >> node) <= window;
  }
};

}  // namespace stepgraph::detail
