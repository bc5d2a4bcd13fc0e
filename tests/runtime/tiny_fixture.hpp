#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "examples/llama/llama_model.hpp"
#include "examples/llama/scheduler.hpp"
#include "tests/reference/llama_forward.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

namespace stepgraph {

/// In small tests two row buckets and one of tokens, where nothing is said: of a capture's time on a GPU most goes into
/// the number of buckets.
inline executor_options few_buckets(const step_limits& limits, executor_options options = {}) {
  if (!test_small()) return options;
  if (!options.row_buckets)
    options.row_buckets =
        bucket_policy::exactly(limits.max_rows < 3 ? std::vector{limits.max_rows}
                                                   : std::vector{(limits.max_rows + 1) / 2, limits.max_rows});
  if (!options.token_buckets) options.token_buckets = bucket_policy::exactly({limits.max_step_tokens});
  return options;
}

/// A whole model from seeded weights, and executors for it.
struct tiny {
  llama::llama_weights weights = llama::make_tiny_weights(7, llama::tiny_config());
  std::unique_ptr<llama::llama_model> model = llama::make_llama(test_device(), weights);

  step_limits limits(int rows, int max_draft_tokens = 0) const {
    return {.max_rows = rows,
            .max_step_tokens = std::max(16, rows * (max_draft_tokens + 1)),
            .max_draft_tokens = max_draft_tokens,
            .max_requests = rows,
            .max_context = 256,
            .page_size = 8,
            .vocab_size = weights.config.vocab_size};
  }
  step_executor executor(int rows, executor_options options = {}, int max_draft_tokens = 0) const {
    const step_limits limits = this->limits(rows, max_draft_tokens);
    return step_executor(test_device(), limits, model->layout(), model->steps(max_draft_tokens > 0),
                         few_buckets(limits, std::move(options)));
  }
};

inline std::vector<std::int32_t> random_prompt(reference::random_integers& random, int length, int vocab) {
  std::vector<std::int32_t> prompt(length);
  for (auto& token : prompt) token = static_cast<std::int32_t>(random.below(vocab));
  return prompt;
}

struct asked {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> answer;
};

/// Whether the largest of `logits` leads by so little that another order of sums may choose another token: a
/// thousandth of their root mean square, ten times what 1,200 texts of the tiny model needed.
inline bool near_tie(std::span<const float> logits) {
  double squares = 0;
  float first = -INFINITY, second = -INFINITY;
  for (const float logit : logits) {
    squares += double(logit) * logit;
    second = std::max(second, std::min(first, logit));
    first = std::max(first, logit);
  }
  return first - second < 1e-3 * std::sqrt(squares / double(logits.size()));
}

/// A random prompt and its greedy continuation by the reference, no paging and no graph; a prompt that leads to
/// a near tie is drawn anew.
inline asked ask_reference(reference::llama_reference& model, reference::random_integers& random, int length,
                           int count) {
  for (;;) {
    asked all{random_prompt(random, length, model.vocab_size()), {}};
    model.reset();
    std::vector<float> logits;
    for (const std::int32_t token : all.prompt) logits = model.forward(token);
    while (!near_tie(logits)) {
      all.answer.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
      if (static_cast<int>(all.answer.size()) == count) return all;
      logits = model.forward(all.answer.back());
    }
  }
}

inline std::vector<std::int32_t> text_of(step_executor& executor, const std::vector<std::int32_t>& prompt,
                                         int count, llama::step_mode mode = llama::step_mode::replay,
                                         llama::drafter draft = {}) {
  llama::scheduler loop(executor, {.mode = mode, .draft = std::move(draft)});
  llama::conversation talk{.prompt = prompt, .max_tokens = count};
  loop.add(talk);
  while (loop.step()) {
  }
  return talk.generated;
}

}  // namespace stepgraph
