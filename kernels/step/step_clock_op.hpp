#pragma once

#include <chrono>

#include "kernels/step/step_clock.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `step_clock`.
struct step_clock_op {
  static constexpr const char* name = "step_clock";
  static constexpr int tile_columns = 0;  // vectors only
  step_clock_params p;

  STEPGRAPH_HD int rows() const { return 1; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int slot = p.header->result_slot;
    if (team.rank() == 0 && slot >= 0 && slot < p.slots)
      p.times[std::int64_t{slot} * p.marks + p.mark] = nanoseconds();
  }

 private:
  STEPGRAPH_HD static std::int64_t nanoseconds() {
#if defined(__CUDA_ARCH__)
    std::int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
#endif
  }
};

}  // namespace stepgraph
