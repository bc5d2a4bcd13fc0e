#pragma once

#include <cuda_runtime.h>

namespace stepgraph::llama {

/// Lets the kernel that follows start its own prologue, before this one has waited itself. What such a prologue may
/// read: weights, and what the kernels before `embed` have written, since `embed` lets nobody start before its wait.
__device__ __forceinline__ void allow_successor() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// Waits for the predecessor before any successor may start.
__device__ __forceinline__ void wait_then_allow_successor() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace stepgraph::llama
