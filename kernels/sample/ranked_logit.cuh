#pragma once

#include "kernels/sample/ranked_logit.hpp"

namespace stepgraph::detail {

/// The largest of a warp's numbers, known to all its lanes.
__device__ __forceinline__ std::uint64_t largest_of_warp(std::uint64_t mine) {
#if __CUDA_ARCH__ >= 800
  const auto key = static_cast<std::uint32_t>(mine >> 32);
  const std::uint32_t most = __reduce_max_sync(~0u, key);
  return std::uint64_t{most} << 32 |
         __reduce_max_sync(~0u, key == most ? static_cast<std::uint32_t>(mine) : 0u);
#else
  for (int offset = 16; offset > 0; offset /= 2) {
    const std::uint64_t other = __shfl_xor_sync(~0u, mine, offset);
    mine = other > mine ? other : mine;
  }
  return mine;
#endif
}

}  // namespace stepgraph::detail
