#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/sample/target_distribution.hpp"

namespace stepgraph {

/// Body of `target_distribution`; a line is a query token.
struct target_distribution_op {
  static constexpr const char* name = "target_distribution";
  struct scratch {};
  target_distribution_params p;

  STEPGRAPH_HD int rows() const { return p.tokens; }
  STEPGRAPH_HD int vocab_size() const { return p.vocab_size; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int token) const {
    if (token >= live_count(p.live_tokens, p.tokens)) return;
    const std::int64_t index = p.sampling.line(p.row_of[token]);
    row_distribution d;
    if (p.sampling.has(index)) {
      const logits_line line{p.logits + token * p.logits_stride,
                             p.allowed.words ? p.allowed.words + token * p.allowed.stride : nullptr,
                             p.vocab_size};
      d = make_distribution(team, team.hold(line), p.sampling.settings[index], p.with_unfiltered, false,
                            [](auto&, const logits_line&, const row_distribution&) {});
    } else {
      d.status = static_cast<std::int32_t>(row_status::request_out_of_range);
    }
    if (team.rank() == 0) p.distributions[token] = d;
  }
};

}  // namespace stepgraph
