#pragma once

#include <cstdint>

#include "kernels/cluster.cuh"

/// What the blocks of a cluster tell each other through their shared memories. Before the first store all blocks
/// must be there: each arrives when it begins and waits once before it stores.
namespace stepgraph::detail {

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <class T>
__device__ __forceinline__ void store_remote(T*, int, T) {}
template <class T>
__device__ __forceinline__ T load_remote(const T* from, int) {
  return *from;
}
#else
__device__ __forceinline__ std::uint32_t remote_address(const void* at, int block) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(at)), "r"(block));
  return remote;
}
/// Stores into the shared memory of a block of the cluster, where it lies as `to` does here.
template <class T>
__device__ __forceinline__ void store_remote(T* to, int block, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4)
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(remote_address(to, block)),
                 "r"(__builtin_bit_cast(std::uint32_t, value))
                 : "memory");
  else
    asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(remote_address(to, block)),
                 "l"(__builtin_bit_cast(std::uint64_t, value))
                 : "memory");
}
__device__ __forceinline__ std::uint64_t load_remote(const unsigned long long* from, int block) {
  std::uint64_t value;
  asm volatile("ld.shared::cluster.b64 %0, [%1];"
               : "=l"(value)
               : "r"(remote_address(from, block))
               : "memory");
  return value;
}
#endif

}  // namespace stepgraph::detail
