#pragma once

#include <cstdint>

#include "kernels/sample/row_driver.hpp"
#include "runtime/choose_tokens.hpp"

namespace stepgraph {

/// What a body's output head leaves.
enum class head_leaves {
  logits,        // and `choose_tokens` passes over them
  ranked,        // the largest alone; a draft is fed plain tokens
  ranked_feeds,  // the draft's steps read ranked numbers, too
};

/// A head whose logits are looked up by the token before: line `source[i]` of the step's tokens has logits
/// table[token]. A team a line.
struct table_head {
  static constexpr const char* name = "table_head";
  struct scratch {};
  const float* table;  // [tokens of the target, vocab]
  std::int32_t vocab;
  std::int32_t lines;
  const std::int32_t* token_ids;  // not read where there is a feed
  ranked_feed feed;
  const std::int32_t* source;  // [lines] or null
  const std::int32_t* line;    // [lines] number that is raised, or null
  float* logits;               // out [lines, vocab], or null
  std::uint64_t* ranked;       // raised, or null

  STEPGRAPH_HD int rows() const { return lines; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int i) const {
    const int from = source ? source[i] : i;
    const std::int64_t token = feed.ranked ? feed[from] : token_ids[from];
    for (int id = team.rank(); id < vocab; id += team.size()) {
      const float value = table[token * vocab + id];
      if (logits) logits[std::int64_t{i} * vocab + id] = value;
      if (ranked) raise(ranked + (line ? line[i] : i), ranked_logit(value, id));
    }
  }

 private:
  STEPGRAPH_HD static void raise(std::uint64_t* number, std::uint64_t to) {
#if defined(__CUDA_ARCH__)
    atomicMax(reinterpret_cast<unsigned long long*>(number), static_cast<unsigned long long>(to));
#else
    std::uint64_t before = __atomic_load_n(number, __ATOMIC_RELAXED);
    while (to > before &&
           !__atomic_compare_exchange_n(number, &before, to, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
#endif
  }
};

}  // namespace stepgraph
