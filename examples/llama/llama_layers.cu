#include "examples/llama/llama_layers.hpp"

#include "examples/llama/host_ops.hpp"
#include "examples/llama/llama_pass.cuh"

namespace stepgraph::llama {
namespace {

/// Cosines and sines of the rotary embedding on the device, as `rope_table` has them.
buffer upload_rope(device where, const llama_config& config) {
  const rope_table table(config.max_context, config.head_size, config.rope_base);
  std::vector<float> values;
  for (int position = 0; position < config.max_context; ++position)
    values.insert(values.end(), table.row(position).begin(), table.row(position).end());
  buffer made(device_memory(where), values.size() * sizeof(float));
  const stream loading(where);
  loading.ref().copy(made.data(), values.data(), made.bytes());
  loading.synchronize();
  return made;
}

}  // namespace

struct llama_layers::state {
  std::unique_ptr<forward_pass> pass;
};

llama_layers::llama_layers(device where, const llama_config& config, element_type type,
                           device_weights weights)
    : state_(std::make_unique<state>()) {
  STEPGRAPH_EXPECTS(config.hidden_size % 8 == 0 && config.ffn_size % 8 == 0,
                    "llama_layers: hidden and ffn sizes must be multiples of 8, got ", config.hidden_size,
                    " and ", config.ffn_size);
  STEPGRAPH_EXPECTS(type != element_type::f16, "llama_layers: type must be bfloat16 or float32, got ",
                    to_string(type));
  STEPGRAPH_EXPECTS(weights.layers.size() == static_cast<std::size_t>(config.layers),
                    "llama_layers: weights of ", weights.layers.size(), " layers for ", config.layers);
  if (type == element_type::f32)
    state_->pass =
        std::make_unique<typed_pass<float>>(where, config, std::move(weights), upload_rope(where, config));
  else
    state_->pass =
        std::make_unique<typed_pass<bf16>>(where, config, std::move(weights), upload_rope(where, config));
}

llama_layers::~llama_layers() = default;

std::size_t llama_layers::scratch_bytes(const step_key& key) const {
  return state_->pass->scratch_bytes(key);
}

void llama_layers::forward(const step_context& step) const {
  state_->pass->forward(step);
}

bool llama_layers::ranks(const step_context& step) const {
  return state_->pass->ranks(step);
}

}  // namespace stepgraph::llama
