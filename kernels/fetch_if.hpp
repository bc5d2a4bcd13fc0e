#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

namespace stepgraph {

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
