#pragma once

#include "kernels/sample/row_distribution.hpp"

namespace stepgraph::detail {

/// A logit and its id in one number: the larger logit is larger, of equals the lower id. Any NaN is larger than
/// all logits, and 0 is less than any.
__device__ __forceinline__ std::uint64_t ranked_logit(float logit, int id) {
  const std::uint32_t key = isnan(logit) ? ~0u : ordered_key(logit);
  return std::uint64_t{key} << 32 | ~static_cast<std::uint32_t>(id);
}
__device__ __forceinline__ bool ranks_nan(std::uint64_t ranked) {
  return ranked >> 32 == ~0u;
}
__device__ __forceinline__ int id_of_ranked(std::uint64_t ranked) {
  return static_cast<int>(~static_cast<std::uint32_t>(ranked));
}

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
