#pragma once

#include "kernels/columns.hpp"

/// Accesses of 16 bytes, and whether the L2 cache is to keep what they move.
namespace stepgraph {

/// What is expected to be wanted again soon, by whoever comes next.
enum class reuse { both, loaded, stored, neither };

template <reuse again = reuse::both>
STEPGRAPH_HD quad load_quad(const void* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (again == reuse::stored || again == reuse::neither) {
    const int4 value = __ldcs(static_cast<const int4*>(from));
    return {{value.x, value.y, value.z, value.w}};
  }
#endif
  return *static_cast<const quad*>(from);
}

template <reuse again = reuse::both>
STEPGRAPH_HD void store_quad(void* to, const quad& value) {
#if defined(__CUDA_ARCH__)
  if constexpr (again == reuse::loaded || again == reuse::neither)
    return __stcs(static_cast<int4*>(to), make_int4(value.v[0], value.v[1], value.v[2], value.v[3]));
#endif
  *static_cast<quad*>(to) = value;
}

}  // namespace stepgraph
