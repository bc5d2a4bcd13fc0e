#include "bench/llama_shapes.hpp"

#include <array>
#include <string>

#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

const std::array<model_shape, 4> shapes{{
    {"SmolLM2-135M",
     {.layers = 30,
      .hidden_size = 576,
      .heads = 9,
      .kv_heads = 3,
      .head_size = 64,
      .ffn_size = 1536,
      .vocab_size = 49152,
      .rope_base = 100000.0f},
     true},
    {"Llama-3.1-8B",
     {.layers = 32,
      .hidden_size = 4096,
      .heads = 32,
      .kv_heads = 8,
      .head_size = 128,
      .ffn_size = 14336,
      .vocab_size = 128256,
      .rope_base = 500000.0f},
     false},
    // 61 layers of one latent of 512 + 64 numbers a token; its queries and weights are left out
    {"DeepSeek-sparse",
     {.layers = 61, .hidden_size = 7168, .heads = 1, .kv_heads = 1, .head_size = 576, .vocab_size = 129280},
     false,
     2048},
    {"tiny", llama::tiny_config(), true},
}};

}  // namespace

std::span<const model_shape> model_shapes() {
  return shapes;
}

const model_shape& model_named(std::string_view name) {
  std::string known;
  for (const model_shape& each : shapes) {
    if (name == each.name) return each;
    known += std::string(known.empty() ? "" : ", ") + each.name;
  }
  throw invalid_argument(message("--model: no model shape is called '", name, "'; known are ", known));
}

model_shape draft_of(const model_shape& shape) {
  model_shape draft = shape;
  draft.config.layers = 1;
  return draft;
}

}  // namespace stepgraph::bench
