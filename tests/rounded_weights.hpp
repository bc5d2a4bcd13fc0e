#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "examples/llama/llama_weights.hpp"
#include "kernels/element_type.hpp"

namespace stepgraph {

/// The same weights, rounded to bfloat16.
inline llama::llama_weights rounded(llama::llama_weights weights) {
  auto storage = std::make_shared<std::vector<std::vector<bf16>>>();
  const auto round = [&](llama::tensor& matrix) {
    std::vector<float> line(matrix.columns);
    std::vector<bf16>& values = storage->emplace_back();
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      llama::dequantize_row(matrix, row, line);
      std::ranges::transform(line, std::back_inserter(values), from_float<bf16>);
    }
    matrix.type = llama::tensor_type::bf16;
    matrix.data = std::as_bytes(std::span(values));
  };
  round(weights.token_embedding);
  weights.output = weights.token_embedding;
  for (llama::llama_layer_weights& layer : weights.layers)
    for (llama::tensor* each : {&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.gate,
                                &layer.up, &layer.down})
      round(*each);
  weights.storage = storage;
  return weights;
}

}  // namespace stepgraph
