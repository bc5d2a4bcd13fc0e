#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

/// Values computed where the source says so: the device compiler else moves what is cheap behind the branch that uses
/// it, where something waits for it.
namespace stepgraph {

/// `pointer` into global memory, computed here, not later and not again wherever it is used.
template <class T>
STEPGRAPH_HD T* settled(T* pointer) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

/// The same of a number.
STEPGRAPH_HD std::int32_t settled(std::int32_t number) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(number));
#endif
  return number;
}

/// *pointer, or 0 if it is null, by a load without a branch.
STEPGRAPH_HD std::int32_t fetch_or_zero(const std::int32_t* pointer) {
#if defined(__CUDA_ARCH__)
  std::int32_t value;
  asm volatile(
      "{\n\t.reg .pred there;\n\tsetp.ne.u64 there, %1, 0;\n\tmov.b32 %0, 0;\n\t"
      "@there ld.global.s32 %0, [%1];\n\t}"
      : "=r"(value)
      : "l"(pointer));
  return value;
#else
  return pointer ? *pointer : 0;
#endif
}

}  // namespace stepgraph
