#pragma once

#include <cstdint>

#include "kernels/attention/mma.cuh"
#include "kernels/attention/split_attention.hpp"

/// Hopper's own instructions for attention: matrix products of a warpgroup (four warps) that read shared
/// memory themselves, and the barriers between warps that load and warps that multiply. sm_90a only.
namespace stepgraph::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define STEPGRAPH_HAS_WGMMA 1
#else
#define STEPGRAPH_HAS_WGMMA 0
#endif

/// A barrier in shared memory that counts arrivals; a phase ends when all have arrived.
__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives, and adds to the bytes that the barrier's phase waits for.
__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// A box of the tensor that `map` describes, at these coordinates, to shared memory; the barrier counts its
/// bytes.
__device__ __forceinline__ void copy_box(std::uint32_t to, const tensor_map* map, int element, int token,
                                         int head, int page, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(element), "r"(token), "r"(head), "r"(page), "r"(barrier)
      : "memory");
}

/// Arrives once all asynchronous copies that this thread has started are there.
__device__ __forceinline__ void arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// 16 bytes of zeros.
__device__ __forceinline__ void clear_shared(std::uint32_t to) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

/// Waits for all asynchronous copies that this thread has started.
__device__ __forceinline__ void wait_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// Waits for the end of the phase with this parity; of the phase before the first, parity 1, it is over.
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Makes what ordinary accesses left in shared memory visible to the matrix products.
__device__ __forceinline__ void fence_for_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#if STEPGRAPH_HAS_WGMMA

template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

/// A matrix in shared memory made of lines of 128 bytes, 16-byte pieces permuted by the line's number modulo
/// 8, at a multiple of 1024 bytes. `leading` is the distance in bytes to the next 128-byte column where lines
/// run along the columns of a product; eight lines on are always 1024 bytes on.
struct shared_matrix {
  std::uint32_t low;

  __device__ shared_matrix(std::uint32_t at, int leading) : low(at >> 4 | std::uint32_t(leading >> 4) << 16) {
    // otherwise the compiler keeps descriptions of all parts in registers, from tile to tile
    asm volatile("" : "+r"(low));
  }

  /// The instructions' description of the part that begins `bytes` further.
  __device__ std::uint64_t from(int bytes) const {
    constexpr std::uint32_t high = 1u << 30 | 1024 >> 4;
    return std::uint64_t{high} << 32 | (low + (bytes >> 4));
  }
};

/// Registers that products read or write are settled before the products that follow.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int Pending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Keeps the compiler from moving uses of `values` over what was said before.
template <int Count>
__device__ __forceinline__ void pin(float (&values)[Count][4]) {
#pragma unroll
  for (auto& each : values)
#pragma unroll
    for (float& value : each) asm volatile("" : "+f"(value)::"memory");
}

// clang-format off
#define STEPGRAPH_WGMMA_SUMS_64(d) \
  "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), \
  "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), \
  "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), \
  "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), \
  "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), \
  "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), \
  "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), \
  "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])

#define STEPGRAPH_WGMMA_LIST_64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

#define STEPGRAPH_WGMMA_SUMS_128(d) \
  "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), \
  "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), \
  "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), \
  "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), \
  "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), \
  "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), \
  "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), \
  "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), \
  "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), \
  "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), \
  "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), \
  "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), \
  "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), \
  "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), \
  "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), \
  "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])

#define STEPGRAPH_WGMMA_LIST_128 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63}"

// clang-format on

/// d (+)= a b^T for 64 x N sums, 16 deep: a [64, 16] and b [N, 16], both lines along the summed dimension in
/// shared memory. Thread i of a warp holds of its warp's 16 lines i/4 and i/4 + 8, in every eight columns
/// 2 (i % 4) and the next, as after `multiply_add`.
#define STEPGRAPH_WGMMA(N, T, TYPE, A_REGISTER, B_REGISTER, P_REGISTER)                                  \
  template <>                                                                                            \
  struct warpgroup_product<T, N> {                                                                       \
    static __device__ __forceinline__ void both_shared(float (&d)[N / 8][4], std::uint64_t a,            \
                                                       std::uint64_t b, int accumulate) {                \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P_REGISTER                                       \
                   ", 0;\n"                                                                              \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                       \
                   " " STEPGRAPH_WGMMA_LIST_##N ", %" A_REGISTER ", %" B_REGISTER ", p, 1, 1, 0, 0;\n}"  \
                   : STEPGRAPH_WGMMA_SUMS_##N(d)                                                         \
                   : "l"(a), "l"(b), "r"(accumulate));                                                   \
    }                                                                                                    \
    static __device__ __forceinline__ void first_held(float (&d)[N / 8][4], const std::uint32_t (&a)[4], \
                                                      std::uint64_t b) {                                 \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                       \
                   " " STEPGRAPH_WGMMA_LIST_##N ", " STEPGRAPH_WGMMA_HELD_##N ", 1, 1, 1, 1;"            \
                   : STEPGRAPH_WGMMA_SUMS_##N(d)                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                \
    }                                                                                                    \
  };

#define STEPGRAPH_WGMMA_HELD_64 "{%32, %33, %34, %35}, %36"
#define STEPGRAPH_WGMMA_HELD_128 "{%64, %65, %66, %67}, %68"

/// Products of one warpgroup, N columns. `both_shared`: a [64, 16] and b [N, 16] in shared memory, lines
/// along the summed dimension. `first_held`: a in registers, as sums of an earlier product packed in pairs; b
/// [16, N], lines along the columns. Sums lie as after `multiply_add`: a thread has of its warp's 16 lines
/// i/4 and i/4 + 8, of every eight columns 2 (i % 4) and the next.
template <class T, int N>
struct warpgroup_product;

STEPGRAPH_WGMMA(64, bf16, "bf16", "32", "33", "34")
STEPGRAPH_WGMMA(64, f16, "f16", "32", "33", "34")
STEPGRAPH_WGMMA(128, bf16, "bf16", "64", "65", "66")
STEPGRAPH_WGMMA(128, f16, "f16", "64", "65", "66")

#endif  // STEPGRAPH_HAS_WGMMA

}  // namespace stepgraph::detail
