#pragma once

#include <cuda_runtime.h>

#include "graphs/cuda_check.hpp"
#include "graphs/graph.hpp"
#include "kernels/kernel_registry.hpp"

namespace stepgraph {

/// Launches a kernel whose whole argument list is one struct, on a stream or into its capture. `programmatic`
/// lets it start while its predecessor still runs: such a kernel begins with `wait_for_predecessor()`.
template <class Params>
void launch(stream_ref at, const char* name, void (*kernel)(const Params), dim3 grid, dim3 block,
            const Params& params, std::size_t shared_bytes = 0, bool programmatic = true) {
  detail::require_in_capture(at, name);
  detail::note_kernel(name, reinterpret_cast<const void*>(kernel));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(at.native());
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
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
