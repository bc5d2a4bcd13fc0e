#include "examples/llama/llama_model.hpp"

#include "graphs/error.hpp"
#include "kernels/sample/greedy_sample.hpp"
#include "kernels/speculate/greedy_accept.hpp"

namespace stepgraph::llama {

kv_layout llama_model::layout() const noexcept {
  return {.type = cache_type_,
          .layers = config_.layers,
          .kv_heads = config_.kv_heads,
          .head_size = config_.head_size};
}

std::vector<step_definition> llama_model::steps(bool with_verify) const {
  std::vector<step_kind> kinds{step_kind::decode, step_kind::extend};
  if (with_verify) kinds.push_back(step_kind::target_verify);
  std::vector<step_definition> steps;
  for (const step_kind kind : kinds)
    steps.push_back({.kind = kind,
                     .variant = 0,
                     .body = [this](const step_context& step) { forward(step); },
                     .scratch_bytes =
                         [this, kind](int rows, int tokens) {
                           return scratch_bytes({.kind = kind, .rows = rows, .tokens = tokens});
                         }});
  return steps;
}

void llama_model::emit(const step_context& step, std::int32_t* argmax) const {
  greedy_sample_params sample{.logits = logits(step),
                              .logits_stride = config_.vocab_size,
                              .rows = head_lines(step.key),
                              .vocab_size = config_.vocab_size,
                              .live_rows = step.live_rows,
                              .query_counts = step.query_counts,
                              .next_token = step.next_token,
                              .faults = step.faults};
  if (!all_tokens_to_head(step.key)) return greedy_sample(step.stream, sample);
  // one argmax a token; a NaN counts only on the path that the accept walks, so it is the accept that reports
  sample.live_rows = step.cu_seqlens_q + step.key.rows;
  sample.query_counts = nullptr;
  sample.next_token = argmax;
  sample.faults = {};
  greedy_sample(step.stream, sample);
  greedy_accept(step.stream, {.verify = {.live_rows = step.live_rows,
                                         .rows = step.key.rows,
                                         .max_query_count = static_cast<std::int32_t>(step.accepted.stride),
                                         .cu_seqlens_q = step.cu_seqlens_q,
                                         .token_ids = step.token_ids},
                              .argmax = argmax,
                              .result = step.accepted,
                              .faults = step.faults});
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
