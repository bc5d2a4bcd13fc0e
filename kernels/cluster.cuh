#pragma once

/// Kernels whose blocks come in clusters, for sm_90 and later; elsewhere no such kernel is launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define STEPGRAPH_CLUSTER(blocks)
#define STEPGRAPH_CLUSTER_Y(blocks)
#else
#define STEPGRAPH_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#define STEPGRAPH_CLUSTER_Y(blocks) __cluster_dims__(1, blocks, 1)
#endif

namespace stepgraph::detail {

/// Says to the cluster's other blocks that this one is here, what it has written before included.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

/// Says so and no more: of what it has written nothing need be there but barriers fenced for the cluster.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

/// Waits until all of them have said so.
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

}  // namespace stepgraph::detail
