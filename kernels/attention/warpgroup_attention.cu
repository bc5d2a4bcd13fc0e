#include <algorithm>

#include <cuda.h>
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

split_device split_device::of(device where) {
  split_device on{.multiprocessors = where.multiprocessors()};
  int major = 0, minor = 0;
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, where.ordinal()));
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, where.ordinal()));
  STEPGRAPH_CUDA_TRY(
      cudaDeviceGetAttribute(&on.block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, where.ordinal()));
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&on.multiprocessor_bytes,
                                            cudaDevAttrMaxSharedMemoryPerMultiprocessor, where.ordinal()));
  on.clusters = major >= 9;
  if (major != 9 || minor != 0) return on;
  cudaFuncAttributes attributes{};
  STEPGRAPH_CUDA_TRY(cudaFuncGetAttributes(&attributes, probe_kernel));
  on.warpgroups = attributes.sharedSizeBytes > 0;
  return on;
}

bool map_pages(const paged_attention_params& params, split_params& to) {
  static_assert(sizeof(tensor_map) == sizeof(CUtensorMap) && alignof(tensor_map) >= alignof(CUtensorMap));
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    STEPGRAPH_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                        cudaEnableDefault, &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const kv_pages_view& cache = params.cache;
  // note: a box is whole swizzled groups of eight lines, and 64 elements are the 128 bytes of one
  if (!encode || params.page_shift < 3 || cache.pages <= 0) return false;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(params.head_size), cuuint64_t{1} << params.page_shift,
                               static_cast<cuuint64_t>(params.kv_heads),
                               static_cast<cuuint64_t>(cache.pages)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(cache.token_stride) * 2,
                                 static_cast<cuuint64_t>(cache.head_stride) * 2,
                                 static_cast<cuuint64_t>(cache.page_stride) * 2};
  const cuuint32_t box[4] = {64, cuuint32_t{1} << std::min(params.page_shift, 6), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const auto map = [&](const void* base, tensor_map& of) {
    return encode(reinterpret_cast<CUtensorMap*>(&of),
                  params.type == element_type::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                  4, const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  };
  return map(cache.keys, to.keys_map) && map(cache.values, to.values_map);
}

}  // namespace stepgraph::detail
