#pragma once

#include "kernels/guard.hpp"

namespace stepgraph {

/// Asks for what will be read a few times soon, so that numbers from many places come in one latency. `at` must be
/// readable; nothing hangs on what is there.
template <class T>
STEPGRAPH_HD void prefetch(const T* at) {
#if defined(__CUDA_ARCH__)
  // note: a load of its own, because a compiler may drop one whose result nobody needs
  asm volatile("{ .reg .b32 unused; ld.global.ca.b32 unused, [%0]; }" ::"l"(at));
#else
  (void)at;
#endif
}

/// The same unless null.
template <class T>
STEPGRAPH_HD void prefetch_if(const T* base, std::int64_t index) {
  if (base) prefetch(base + index);
}

}  // namespace stepgraph
