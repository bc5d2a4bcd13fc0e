#pragma once

#include <cstdint>

#include "kernels/attention/mma.cuh"
#include "kernels/cluster.cuh"

/// What blocks of a thread block cluster send each other, for sm_90 and later; elsewhere no launch has
/// clusters.
namespace stepgraph::detail {

/// Address of what lies at `at` here in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t remote_address(std::uint32_t at, int rank) {
  std::uint32_t remote = at;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
#endif
  return remote;
}

/// Two floats to another block's shared memory, asynchronously; its barrier counts their bytes.
__device__ __forceinline__ void send_remote(std::uint32_t to, float first, float second,
                                            std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(first), "f"(second), "r"(barrier)
               : "memory");
#endif
}

/// A barrier whose only phase ends when as many bytes have come as `expect_bytes` says.
__device__ __forceinline__ void init_received(std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

__device__ __forceinline__ void wait_received(std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier)
      : "memory");
#endif
}

}  // namespace stepgraph::detail
