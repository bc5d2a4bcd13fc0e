#pragma once

#include "kernels/step/read_fence.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `read_fence`.
struct read_fence_op {
  static constexpr const char* name = "read_fence";
  static constexpr int tile_columns = 0;  // vectors only
  read_fence_params p;

  STEPGRAPH_HD int rows() const { return 1; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    // a warm-up is no step: its number is 0, and the fence never falls
    if (team.rank() != 0 || p.header->last_reader != p.part || p.header->sequence == 0) return;
#if defined(__CUDA_ARCH__)
    __threadfence_system();
    *const_cast<volatile std::uint64_t*>(p.fence) = p.header->sequence;
#else
    __atomic_store_n(p.fence, p.header->sequence, __ATOMIC_RELEASE);
#endif
  }
};

}  // namespace stepgraph
