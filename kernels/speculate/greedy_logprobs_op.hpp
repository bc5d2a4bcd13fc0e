#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/speculate/greedy_logprobs.hpp"

namespace stepgraph {

/// Body of `greedy_logprobs`: a team a line.
struct greedy_logprobs_op {
  static constexpr const char* name = "greedy_logprobs";
  struct scratch {};
  greedy_logprobs_params p;

  STEPGRAPH_HD int rows() const { return p.lines; }
  STEPGRAPH_HD int vocab_size() const { return p.vocab_size; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int line) const {
    if (line >= live_count(p.live_lines, p.lines)) return;
    const bool verify = p.verify.rows > 0;
    const std::int64_t place = verify ? place_of(line) : line * p.stride;
    const std::int32_t token = p.argmax[line];
    if (place < 0 || (verify && token < 0)) return;
    float logprob = 0.0f;
    if (p.unfiltered_logprobs && token >= 0) {
      const logits_line logits{p.logits + line * p.logits_stride,
                               p.allowed.words ? p.allowed.words + line * p.allowed.stride : nullptr,
                               p.vocab_size};
      row_distribution d;
      d.max_logit = logits.logits[token];
      d.unfiltered_total = team.sum(p.vocab_size, [&](int id) { return d.weight(logits, id); });
      logprob = d.unfiltered_logprob(d.max_logit);
    }
    if (team.rank() != 0) return;
    if (p.logprobs) p.logprobs[place] = 0.0f;
    if (p.unfiltered_logprobs) p.unfiltered_logprobs[place] = logprob;
  }

 private:
  /// Entry of the token that is emitted after token `line` of a verify step; negative off the accepted path.
  STEPGRAPH_HD std::int64_t place_of(int line) const {
    const int row = p.row_of[line], first = p.verify.cu_seqlens_q[row], node = line - first;
    if (node >= p.verify.count(row)) return -1;
    int current = 0, accepted = 0;
    for (int next = 1; next <= node; ++next) {
      const std::int32_t best = p.argmax[first + current];
      if (best < 0 || p.verify.parent(first, next) != current || p.verify.token_ids[first + next] != best)
        continue;
      current = next;
      ++accepted;
    }
    return current == node ? row * p.stride + accepted : -1;
  }
};

}  // namespace stepgraph
