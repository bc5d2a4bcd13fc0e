#pragma once

#include <map>

#include "examples/llama/draft_model.hpp"
#include "runtime/speculative_loop.hpp"
#include "tests/runtime/tiny_fixture.hpp"

namespace stepgraph {

/// `weights` with an output head of its own, off by uniform noise of up to `noise`: greedy text that agrees
/// with the original's now and then, the less the more noise.
inline llama::llama_weights noisy_weights(const llama::llama_weights& weights, float noise,
                                          std::uint64_t seed) {
  struct owned {
    std::shared_ptr<const void> original;
    std::vector<float> output;
  };
  auto held = std::make_shared<owned>();
  held->original = weights.storage;
  const std::int64_t columns = weights.output.columns;
  held->output.resize(weights.output.rows * columns);
  reference::random_integers random(seed);
  for (std::int64_t row = 0; row < weights.output.rows; ++row) {
    const std::span<float> line(held->output.data() + row * columns, columns);
    llama::dequantize_row(weights.output, row, line);
    for (float& value : line) value += noise * (float(random.below(20001)) / 10000.0f - 1.0f);
  }
  llama::llama_weights noisy = weights;
  noisy.output.type = llama::tensor_type::f32;
  noisy.output.data = std::as_bytes(std::span(held->output));
  noisy.storage = held;
  return noisy;
}

/// A whole model as draft. It takes no notice of the target's states, and reads the text from its second token
/// on, as every draft does.
class model_draft final : public llama::draft_model {
 public:
  model_draft(const llama::llama_weights& weights, int hidden_size)
      : model_(llama::make_llama(test_device(), weights)), hidden_size_(hidden_size) {}

  draft_shape shape() const override {
    return {
        .layout = model_->layout(), .hidden_size = hidden_size_, .vocab_size = model_->config().vocab_size};
  }
  std::size_t scratch_bytes(const step_key& key) const override { return model_->scratch_bytes(key); }
  void forward(const step_context& step) const override { model_->forward(step); }

 private:
  std::unique_ptr<llama::llama_model> model_;
  int hidden_size_;
};

struct draft_setup {
  int rows = 4;
  int most = 4;  // K
  bool sampled = false;
  bool trees = false;
  bool draft = true;
  int page_size = 8;
  std::int64_t kv_pages = 0;
  std::vector<std::int32_t> end_ids{};
  bool poison = false;
  std::int64_t max_context = 256;
  int step_tokens = 0;
  executor_options options{};
};

/// The tiny model with a draft that is itself with noise.
struct tiny_with_draft : tiny {
  explicit tiny_with_draft(float noise = 0.02f)
      : tiny_with_draft(llama::make_tiny_weights(7, llama::tiny_config()), noise) {}
  tiny_with_draft(const llama::llama_weights& target, float noise)
      : tiny{target}, draft(noisy_weights(target, noise, 11), target.config.hidden_size) {}
  tiny_with_draft(const llama::llama_weights& target, const llama::llama_weights& draft)
      : tiny{target}, draft(draft, target.config.hidden_size) {}

  step_executor executor(const draft_setup& how) const {
    step_limits limits = this->limits(how.rows, how.most);
    limits.page_size = how.page_size;
    limits.kv_pages = how.kv_pages;
    limits.max_context = how.max_context;
    limits.hidden_size = weights.config.hidden_size;
    limits.max_step_tokens = std::max(limits.max_step_tokens, how.step_tokens);
    std::vector<step_definition> steps =
        model->steps(llama::step_choice{.verify = how.most > 0, .sampled = how.sampled, .trees = how.trees});
    executor_options options = how.options;
    options.poison = how.poison;
    options.finish = finish_options{how.end_ids};
    if (how.draft && how.most > 0) {
      options.draft = draft.shape();
      for (step_definition& step : draft.steps())
        if (how.sampled || !step.sampled) steps.push_back(std::move(step));
    }
    return step_executor(test_device(), limits, model->layout(), std::move(steps),
                         few_buckets(limits, std::move(options)));
  }

  model_draft draft;
};

/// One text of a loop, as it came.
struct heard {
  std::vector<std::int32_t> tokens{};
  generation_end end{};
  bool ended = false;
};

inline generation_id submit(speculative_loop& loop, std::vector<std::int32_t> prompt, int max_tokens,
                            heard& to, const sampling_settings& sampling = {}) {
  return loop.submit({.prompt = std::move(prompt),
                      .max_tokens = max_tokens,
                      .sampling = sampling,
                      .on_token = [&to](std::int32_t token) { to.tokens.push_back(token); },
                      .on_end =
                          [&to](const generation_end& end) {
                            to.end = end;
                            to.ended = true;
                          }});
}

/// A prompt, and what is the answer to it.
/// Random prompts and what plain decoding says to them.
inline std::vector<asked> some_texts(const tiny& t, int count, int longest_answer, std::uint64_t seed) {
  reference::random_integers random(seed);
  step_executor plain = t.executor(1);
  plain.capture();
  std::vector<asked> all;
  for (int i = 0; i < count; ++i) {
    const std::vector<std::int32_t> prompt =
        random_prompt(random, static_cast<int>(random.between(1, 40)), t.weights.config.vocab_size);
    all.push_back({prompt, text_of(plain, prompt, static_cast<int>(random.between(1, longest_answer)))});
  }
  return all;
}

/// The same with prompts and answers of one length.
inline std::vector<asked> equal_texts(const tiny& t, int count, int prompt, int answer, std::uint64_t seed) {
  reference::random_integers random(seed);
  step_executor plain = t.executor(1);
  std::vector<asked> all;
  for (int i = 0; i < count; ++i) {
    all.push_back({random_prompt(random, prompt, t.weights.config.vocab_size), {}});
    all.back().answer = text_of(plain, all.back().prompt, answer, llama::step_mode::eager);
  }
  return all;
}

/// A drafter that knows the texts: a random tree whose first path is the text for a random part of its way;
/// what hangs beside it are other tokens.
inline host_drafter growing_trees(const std::vector<asked>& all, int vocab, std::uint64_t seed) {
  return [&all, vocab, random = std::make_shared<reference::random_integers>(seed)](
             std::span<const std::int32_t> history, draft_proposal proposal) {
    for (const auto& [prompt, answer] : all) {
      if (history.size() < prompt.size() || !std::ranges::equal(history.first(prompt.size()), prompt))
        continue;
      const auto done = static_cast<std::size_t>(std::ssize(history) - std::ssize(prompt));
      const auto count = static_cast<int>(random->below(std::ssize(proposal.tokens) + 1));
      const auto right = static_cast<int>(random->below(count + 1));
      int end_of_path = 0, depth = 0;
      for (int i = 0; i < count; ++i) {
        // the right path goes on now and then; before and after, anything may hang anywhere
        const bool goes_on = depth < right && done + depth < answer.size() &&
                             (count - i <= right - depth || random->one_in(2));
        proposal.parents[i] = goes_on ? end_of_path : static_cast<std::int32_t>(random->below(i + 1));
        proposal.tokens[i] = goes_on ? answer[done + depth] : static_cast<std::int32_t>(random->below(vocab));
        if (!goes_on) continue;
        end_of_path = i + 1;
        ++depth;
      }
      return count;
    }
    return 0;
  };
}

/// Waits that a loop may need for `steps` target steps: one for each step's results, and those only where a device
/// runs beside the host. Launching a step waits for nothing.
inline std::uint64_t waits_of(std::uint64_t steps) {
  return test_device().is_host() ? 0 : steps;
}

}  // namespace stepgraph
