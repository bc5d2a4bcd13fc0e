#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "examples/llama/llama_weights.hpp"

namespace stepgraph {
class thread_pool;
}

namespace stepgraph::llama {

/// A weight matrix laid out for the host's product, as large as the tensor it was made from but for padding
/// (rows to 16, columns to 32). The tensor is not needed afterwards.
class host_matrix {
 public:
  host_matrix() = default;
  explicit host_matrix(const tensor& weight);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::size_t bytes() const { return bytes_; }

 private:
  friend void matmul(const host_matrix& weight, std::span<const float> x, std::span<float> y, int tokens,
                     thread_pool& pool);

  struct aligned_delete {
    void operator()(std::uint32_t* words) const;
  };

  tensor_type type_ = tensor_type::f32;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::uint32_t[], aligned_delete> words_;
};

/// y = W x for each token; `x` [tokens, columns], `y` [tokens, rows]. Weights enter as the values they stand
/// for and all arithmetic is float. A token's result has the same bits whatever the number of tokens, its
/// place among them and the number of threads (not across kinds of processor: fused multiply-add is used
/// where it is there).
void matmul(const host_matrix& weight, std::span<const float> x, std::span<float> y, int tokens,
            thread_pool& pool);

}  // namespace stepgraph::llama
