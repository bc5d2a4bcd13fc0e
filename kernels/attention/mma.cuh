#pragma once

#include <cstdint>

#include "kernels/element_type.hpp"

/// The instructions that the tensor-core attention kernels are made of, for sm_80 and later.
namespace stepgraph::detail {

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// 16 bytes from global to shared memory, asynchronously; zeros, and no access, where not `live`.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool live) {
  const int bytes = live ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

/// How the second-level cache is to treat what is copied: what is read `once` leaves before anything else does.
__device__ __forceinline__ std::uint64_t cache_policy(bool once) {
  std::uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return once ? first : normal;
}

/// The same of what is there.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// The same under a policy.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
}

/// The same for one word.
__device__ __forceinline__ void copy_word_async(std::uint32_t to, const void* from, bool live) {
  const int bytes = live ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `Pending` of this thread's groups are under way.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane i gives the address of line i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// d += a b, 16x8x16. Lane i holds of a lines i/4 and i/4 + 8, of b column i/4, of d lines i/4 and i/4 + 8 in
/// columns 2 (i % 4) and the next.
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1);

template <>
__device__ __forceinline__ void multiply_add<bf16>(float (&d)[4], const std::uint32_t (&a)[4],
                                                   std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_add<f16>(float (&d)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two floats as two elements, the first in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float first, float second);

template <>
__device__ __forceinline__ std::uint32_t pack<bf16>(float first, float second) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

template <>
__device__ __forceinline__ std::uint32_t pack<f16>(float first, float second) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

/// Adds one to a counter after everything that this thread knows of was written, and before it reads anything.
__device__ __forceinline__ std::int32_t count_arrival(std::int32_t* counter) {
  std::int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

/// A word of device memory. note: volatile, so that several are asked for in turn before one is waited for
__device__ __forceinline__ std::int32_t load_global(const std::int32_t* from) {
  std::int32_t word;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

/// The lowest `count` bits: none below 0, all from 32 on.
__device__ __forceinline__ std::uint32_t bits_below(int count) {
  std::uint32_t bits;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(bits) : "r"(max(count, 0)));
  return bits;
}

/// 2^x to two units in the last place; 0 for minus infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// tanh to about 1e-6, absolute.
__device__ __forceinline__ float tanh_fast(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(x * 2.885390082f));
}

}  // namespace stepgraph::detail
