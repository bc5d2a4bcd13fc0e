#include <cuda_runtime.h>

#include "graphs/cuda_check.hpp"
#include "kernels/attention/split_attention.hpp"
#include "kernels/attention/wgmma.cuh"

namespace stepgraph::detail {
namespace {

// never launched: its shared memory says which form of this folder's code the driver has chosen
__global__ void probe_kernel(int* to) {
#if STEPGRAPH_HAS_WGMMA
  __shared__ int there;
  there = *to;
  __syncthreads();
  *to = there + 1;
#else
  *to = 0;
#endif
}

}  // namespace

bool has_warpgroup_products(device where) {
  int major = 0, minor = 0;
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, where.ordinal()));
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, where.ordinal()));
  if (major != 9 || minor != 0) return false;
  cudaFuncAttributes attributes{};
  STEPGRAPH_CUDA_TRY(cudaFuncGetAttributes(&attributes, probe_kernel));
  return attributes.sharedSizeBytes > 0;
}

}  // namespace stepgraph::detail
