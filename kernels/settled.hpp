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

/// *pointer, or 0 if it is null, by a load without a branch. note: by itself and not by `fetch_if`, whose condition is a
/// number that the device compiler then makes first
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

/// values[i], or 0 where it is not `there`, by a load without a branch where the source says so: several are then on
/// their way before the first is used. Where a value is looked at beside its load, the device compiler waits for each
/// before it issues the next. Only for what the same kernel does not write before: the compiler does not know that
/// memory is read here.
template <class T>
STEPGRAPH_HD T fetch_if(bool there, const T* values, std::int64_t i) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if defined(__CUDA_ARCH__)
  T value;
  const auto asked = static_cast<std::int32_t>(there);
  if constexpr (sizeof(T) == 4)
    asm volatile(
        "{\n\t.reg .pred there;\n\tsetp.ne.s32 there, %2, 0;\n\tmov.b32 %0, 0;\n\t"
        "@there ld.global.b32 %0, [%1];\n\t}"
        : "=r"(value)
        : "l"(values + i), "r"(asked));
  else
    asm volatile(
        "{\n\t.reg .pred there;\n\tsetp.ne.s32 there, %2, 0;\n\tmov.b64 %0, 0;\n\t"
        "@there ld.global.b64 %0, [%1];\n\t}"
        : "=l"(value)
        : "l"(values + i), "r"(asked));
  return value;
#else
  return there ? values[i] : 0;
#endif
}

}  // namespace stepgraph
