#pragma once

#include "bench/replay/simulated_accept.hpp"
#include "kernels/sample/philox.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph::bench {

/// Body of `simulated_accept`: a thread a row.
struct simulated_accept_op {
  static constexpr const char* name = "simulated_accept";
  static constexpr int tile_columns = 0;  // vectors only
  simulated_accept_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(p.verify.live_rows, rows());
    const std::uint32_t round = *p.rounds;
    team.sync();  // everyone has read the count
    if (team.rank() == 0) *p.rounds = round + 1;
    for (int row = team.rank(); row < rows(); row += team.size()) accept(row, row < live, round);
  }

 private:
  STEPGRAPH_HD void accept(int row, bool live, std::uint32_t round) const {
    const int count = p.verify.count(row);
    if (count == 0) return p.result.store(row, p.result.none(live));
    const float drawn =
        uniform_of(philox4x32_10({{static_cast<std::uint32_t>(row), round, 0, 0}},
                                 static_cast<std::uint32_t>(p.seed), static_cast<std::uint32_t>(p.seed >> 32))
                       .word[0]);
    const int first = p.verify.cu_seqlens_q[row];
    int kept = 0;
    while (kept < count - 1 && drawn >= p.cumulative[kept]) {
      p.result.keep(row, kept, kept + 1, p.verify.token_ids[first + kept + 1]);
      ++kept;
    }
    p.result.store(row, p.result.finish(row, kept, p.verify.token_ids[first]));
  }
};

}  // namespace stepgraph::bench
