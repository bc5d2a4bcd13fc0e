#include "examples/llama/llama_model.hpp"

#include "graphs/error.hpp"
#include "runtime/choose_tokens.hpp"

namespace stepgraph::llama {

llama_model::llama_model(const llama_config& config, element_type cache_type)
    : config_(config), cache_type_(cache_type) {
  int before = 0;
  for (const int tap : config.taps) {
    STEPGRAPH_EXPECTS(tap > before && tap <= config.layers,
                      "llama_model: taps must be ascending layers in [1, ", config.layers, "], got ", tap,
                      " after ", before);
    before = tap;
  }
}

void llama_model::check_states(const step_context& step) const {
  const int size = states_of(config_) * config_.hidden_size;
  STEPGRAPH_EXPECTS(!step.hidden || step.hidden_size == size, "llama_model: it leaves states of ", size,
                    " numbers a token, the executor's are of ", step.hidden_size);
}

kv_layout llama_model::layout() const noexcept {
  return {.type = cache_type_,
          .layers = config_.layers,
          .kv_heads = config_.kv_heads,
          .head_size = config_.head_size};
}

std::vector<step_definition> llama_model::steps(const step_choice& choice) const {
  std::vector<step_definition> steps;
  const auto add = [&](step_kind kind, int variant, bool sampled, bool tree) {
    steps.push_back({.kind = kind,
                     .variant = variant,
                     .body = [this](const step_context& step) { forward(step); },
                     .scratch_bytes =
                         [this, kind](int rows, int tokens) {
                           return scratch_bytes({.kind = kind, .rows = rows, .tokens = tokens});
                         },
                     .sampled = sampled,
                     .tree = tree});
  };
  for (const bool sampled : {false, true}) {
    if (sampled && !choice.sampled) break;
    add(step_kind::decode, sampled ? 1 : 0, sampled, false);
    add(step_kind::extend, sampled ? 1 : 0, sampled, false);
    if (choice.verify) add(step_kind::target_verify, sampled ? 1 : 0, sampled, false);
    if (choice.trees) add(step_kind::target_verify, sampled ? 3 : 2, sampled, true);
  }
  return steps;
}

void llama_model::emit(const step_context& step) const {
  choose_tokens(step, {.data = logits(step),
                       .stride = config_.vocab_size,
                       .vocab_size = config_.vocab_size,
                       .ranked = ranks(step)});
}

std::unique_ptr<llama_model> make_llama(device where, const llama_weights& weights) {
  if (where.is_host()) return make_host_llama(weights);
#if STEPGRAPH_CUDA
  return make_cuda_llama(where, weights);
#else
  throw cuda_error("make_llama: this stepgraph was built without CUDA", 0);
#endif
}

}  // namespace stepgraph::llama
