#pragma once

#include "kernels/attention/wgmma.cuh"

/// Products of one warpgroup with as few columns as an output head has tokens, beside those of attention.
namespace stepgraph::detail {

#if STEPGRAPH_HAS_WGMMA

// clang-format off
#define STEPGRAPH_HEAD_SUMS(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define STEPGRAPH_HEAD_SUMS_4(d, j) \
  STEPGRAPH_HEAD_SUMS(d, j), STEPGRAPH_HEAD_SUMS(d, j + 1), STEPGRAPH_HEAD_SUMS(d, j + 2), STEPGRAPH_HEAD_SUMS(d, j + 3)
#define STEPGRAPH_WGMMA_SUMS_8(d) STEPGRAPH_HEAD_SUMS(d, 0)
#define STEPGRAPH_WGMMA_SUMS_32(d) STEPGRAPH_HEAD_SUMS_4(d, 0)
#define STEPGRAPH_WGMMA_SUMS_160(d) \
  STEPGRAPH_HEAD_SUMS_4(d, 0), STEPGRAPH_HEAD_SUMS_4(d, 4), STEPGRAPH_HEAD_SUMS_4(d, 8), STEPGRAPH_HEAD_SUMS_4(d, 12), \
  STEPGRAPH_HEAD_SUMS_4(d, 16)

#define STEPGRAPH_WGMMA_LIST_8 \
  "{%0, %1, %2, %3}"

#define STEPGRAPH_WGMMA_LIST_32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"

#define STEPGRAPH_WGMMA_LIST_160 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}"

// clang-format on

#define STEPGRAPH_HEAD_PRODUCT(N, A_REGISTER, B_REGISTER, P_REGISTER)                                   \
  template <>                                                                                           \
  struct warpgroup_product<bf16, N> {                                                                   \
    static __device__ __forceinline__ void both_shared(float (&d)[N / 8][4], std::uint64_t a,           \
                                                       std::uint64_t b, int accumulate) {               \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P_REGISTER                                      \
                   ", 0;\n"                                                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 " STEPGRAPH_WGMMA_LIST_##N \
                   ", %" A_REGISTER ", %" B_REGISTER ", p, 1, 1, 0, 0;\n}"                              \
                   : STEPGRAPH_WGMMA_SUMS_##N(d)                                                        \
                   : "l"(a), "l"(b), "r"(accumulate));                                                  \
    }                                                                                                   \
  };

STEPGRAPH_HEAD_PRODUCT(8, "4", "5", "6")
STEPGRAPH_HEAD_PRODUCT(32, "16", "17", "18")
STEPGRAPH_HEAD_PRODUCT(160, "80", "81", "82")

#endif  // STEPGRAPH_HAS_WGMMA

}  // namespace stepgraph::detail
