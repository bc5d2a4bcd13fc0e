#pragma once

#include <cuda_runtime.h>

#include "graphs/cuda_check.hpp"
#include "graphs/graph.hpp"
#include "kernels/kernel_registry.hpp"
#include "kernels/programmatic_launch.hpp"

namespace stepgraph {

/// Launches a kernel whose whole argument list is one struct, on a stream or into its capture. `programmatic`
/// lets it start while its predecessor still runs, where `programmatic_launches()` does: such a kernel begins with
/// `wait_for_predecessor()`. `cluster`: blocks of a cluster, where the kernel does not say so itself.
template <class Params>
void launch(stream_ref at, const char* name, void (*kernel)(const Params), dim3 grid, dim3 block,
            const Params& params, std::size_t shared_bytes = 0, bool programmatic = true, dim3 cluster = 1) {
  detail::require_in_capture(at, name);
  detail::note_kernel(name, reinterpret_cast<const void*>(kernel));
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (programmatic && programmatic_launches()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster.x * cluster.y * cluster.z > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster.x;
    attributes[count].val.clusterDim.y = cluster.y;
    attributes[count++].val.clusterDim.z = cluster.z;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(at.native());
  config.attrs = attributes;
  config.numAttrs = count;
  if (const cudaError_t status = cudaLaunchKernelEx(&config, kernel, params); status != cudaSuccess)
    detail::cuda::throw_status(status, name, ::stepgraph::detail::source_place::current());
}

/// First statement of every kernel launched with `launch`: lets the successor start its own prologue, then
/// waits until everything before this kernel is complete and visible. Nothing may be read or written before
/// it.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

}  // namespace stepgraph
