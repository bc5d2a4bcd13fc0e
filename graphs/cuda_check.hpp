#pragma once

#include <cuda_runtime_api.h>

#include "graphs/error.hpp"

namespace stepgraph::detail::cuda {

/// Throws for `status`: `device_lost` if the context did not survive (now or earlier), else `cuda_error`.
[[noreturn]] void throw_status(cudaError_t status, const char* call, source_place place);

}  // namespace stepgraph::detail::cuda

/// Throws if a call of the CUDA runtime fails; the message carries the call, its error and the place.
#define STEPGRAPH_CUDA_TRY(call)                                                                             \
  do {                                                                                                       \
    if (const cudaError_t status_ = (call); status_ != cudaSuccess)                                          \
      ::stepgraph::detail::cuda::throw_status(status_, #call, ::stepgraph::detail::source_place::current()); \
  } while (false)
