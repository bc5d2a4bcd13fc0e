#pragma once

#include <cuda_runtime.h>

#include "graphs/cuda_check.hpp"
#include "graphs/stream.hpp"

namespace stepgraph {

/// Lines of so many bytes that two fifths of the GPU's L2 cache hold. A larger share of a long output leaves no
/// room for what only passes through, and is gone before it is read.
inline std::int64_t lines_that_stay(stream_ref at, std::int64_t bytes) {
  int cache = 0;
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, at.where().ordinal()));
  return std::int64_t{cache} * 2 / 5 / bytes;
}

}  // namespace stepgraph
