#pragma once

#include <cublas_v2.h>

#include "graphs/error.hpp"
#include "graphs/memory_resource.hpp"
#include "graphs/stream.hpp"
#include "kernels/element_type.hpp"

namespace stepgraph::llama {

/// Products of bfloat16 matrices by cuBLAS, for more tokens than the skinny ones take. The workspace is its
/// own, so a capture allocates nothing.
class cublas_products {
 public:
  explicit cublas_products(device where) : workspace_(device_memory(where), 32 << 20) {
    check(cublasCreate(&handle_), "cublasCreate");
  }
  ~cublas_products() { (void)cublasDestroy(handle_); }
  cublas_products(const cublas_products&) = delete;
  cublas_products& operator=(const cublas_products&) = delete;

  /// Products go to `at` from now on.
  void use(stream_ref at) const {
    check(cublasSetStream(handle_, static_cast<cudaStream_t>(at.native())), "cublasSetStream");
    // cublasSetStream forgets the workspace
    check(cublasSetWorkspace(handle_, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
  }

  /// y [tokens, rows] = or += x [tokens, columns] times the weight [rows, columns] transposed.
  void multiply(const bf16* weight, const bf16* x, float* y, int rows, int columns, int tokens,
                bool accumulate) const {
    const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    check(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, rows, tokens, columns, &one, weight, CUDA_R_16BF,
                       columns, x, CUDA_R_16BF, columns, &beta, y, CUDA_R_32F, rows, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  }

 private:
  static void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS)
      throw cuda_error(message(call, ": ", cublasGetStatusString(status)), static_cast<int>(status));
  }

  buffer workspace_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace stepgraph::llama
