#pragma once

#include <vector>

#include "bench/llama_shapes.hpp"
#include "examples/llama/llama_layers.hpp"
#include "graphs/memory_resource.hpp"

namespace stepgraph::bench {

/// A model's weights in device memory: seeded random matrices in bfloat16 and gains of one.
class synthetic_weights {
 public:
  synthetic_weights(device where, const model_shape& shape, std::uint64_t seed);

  const llama::device_weights& view() const { return view_; }

  /// Bytes of the matrices that one token reads.
  std::int64_t matrix_bytes() const { return matrix_bytes_; }

 private:
  const void* matrix(std::int64_t rows, std::int64_t columns);
  const float* ones(std::int64_t count);

  stream at_;
  std::uint32_t seed_;
  std::vector<buffer> blocks_;
  llama::device_weights view_;
  std::int64_t matrix_bytes_ = 0;
};

}  // namespace stepgraph::bench
