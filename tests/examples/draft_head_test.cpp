// The draft head's pass on a device: ragged entries fed by a target's states, then entries fed by its own, in
// pages; and the head as the draft of a loop.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/examples/draft_head_files.hpp"
#include "tests/examples/draft_head_steps.hpp"
#include "tests/reference/llama_forward.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;
using namespace stepgraph::llama;

namespace {

/// Every few tokens of the target.
std::vector<std::int32_t> some_ids(reference::random_integers& random, int vocab_size) {
  std::vector<std::int32_t> ids;
  for (int id = 0; id < vocab_size; id += 1 + static_cast<int>(random.below(4))) ids.push_back(id);
  return ids;
}

draft_head_weights make_head(reference::random_integers& random, const llama_weights& target,
                             element_type type) {
  const std::vector<std::int32_t> ids = some_ids(random, target.config.vocab_size);
  return load_draft_head(safetensors_file(random_head(random, target.config, ids, type).file(), "head"),
                         target);
}

/// Distance of line `line` of `got` from `want`, relative to the norm of `want`.
template <class Value>
double distance(const std::vector<float>& got, std::size_t line, const std::vector<Value>& want) {
  double square = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = got[line * want.size() + i] - want[i];
    square += off * off;
    norm += want[i] * want[i];
  }
  return std::sqrt(square / norm);
}

/// A head beside its reference, a text a row.
class checked_head {
 public:
  checked_head(element_type type, int rows, std::vector<int> taps)
      : target_(tapped(std::move(taps))),
        head_(make_head(random_, target_, type)),
        steps_(head_.model, rows),
        references_(static_cast<std::size_t>(rows), reference::llama_reference(head_.model)),
        own_(static_cast<std::size_t>(rows)),
        tolerance_(type == element_type::f32 || test_device().is_host() ? 2e-5 : 0.03) {}

  /// One step of `counts` entries a row, fed by a target's states or (one entry a row) by the head's own.
  void step(const std::vector<int>& counts, int token_bucket, bool own) {
    std::vector<draft_entry> entries;
    std::vector<std::vector<float>> logits(counts.size());
    for (std::size_t row = 0; row < counts.size(); ++row)
      for (int i = 0; i < counts[row]; ++i) {
        draft_entry& entry = entries.emplace_back(draft_entry{.row = static_cast<int>(row)});
        entry.token = static_cast<std::int32_t>(random_.below(target_.config.vocab_size));
        entry.state = own ? own_[row] : random_state();
        logits[row] = references_[row].forward(entry.token, entry.state);
      }
    const draft_result got = steps_.run(entries, static_cast<int>(counts.size()), token_bucket);
    for (std::size_t row = 0; row < counts.size(); ++row) {
      if (counts[row] == 0) continue;
      CAPTURE(row);
      CHECK(distance(got.logits, row, logits[row]) < tolerance_);
      std::vector<double> states(static_cast<std::size_t>(line_size()), 0.0);  // its own after zeros
      std::ranges::copy(references_[row].hidden(), states.end() - target_.config.hidden_size);
      CHECK(distance(got.states, row, states) < tolerance_);
      const auto from = got.states.begin() + static_cast<std::ptrdiff_t>(row) * line_size();
      own_[row].assign(from, from + line_size());
      CHECK(
          std::all_of(from, from + line_size() - target_.config.hidden_size, [](float x) { return x == 0; }));
    }
  }

 private:
  std::vector<float> random_state() {
    std::vector<float> state(static_cast<std::size_t>(line_size()));
    for (float& value : state) value = static_cast<float>(random_.below(401)) / 50.0f - 4.0f;
    return state;
  }

  static llama_weights tapped(std::vector<int> taps) {
    llama_weights target = make_tiny_weights(7, tiny_config());
    target.config.taps = std::move(taps);
    return target;
  }

  std::ptrdiff_t line_size() const {
    return std::ptrdiff_t{states_of(target_.config)} * target_.config.hidden_size;
  }

  reference::random_integers random_{test_seed()};
  llama_weights target_;
  draft_head_weights head_;
  draft_steps steps_;
  std::vector<reference::llama_reference> references_;
  std::vector<std::vector<float>>
      own_;  // [rows][states * hidden] what the head made of each row's last entry
  double tolerance_;
};

}  // namespace

TEST_CASE("a draft head says what its reference says, from a target's states and from its own") {
  for (const element_type type : {element_type::f32, element_type::bf16})
    for (const std::vector<int>& taps : {std::vector<int>{}, {1, 2}}) {
      CAPTURE(to_string(type));
      CAPTURE(taps.size());
      checked_head head(type, 5, taps);
      head.step({3, 1, 0, 7}, 16, false);
      head.step({1, 1, 0, 1}, 5, true);
      head.step({1, 0, 0, 1}, 5, true);
      head.step({2, 5, 1, 1, 4}, 13, false);
      head.step({40, 1, 26, 3, 2}, 72, false);  // more than the fused products take
      head.step({1, 1, 1, 1, 1}, 5, true);
    }
}

TEST_CASE("a target leaves the residuals of its taps, as models of so many layers have them") {
  llama_weights target = make_tiny_weights(9, tiny_config());
  target.config.taps = {1, 2};
  const auto hidden = static_cast<std::size_t>(target.config.hidden_size);
  draft_steps steps(target, 3);
  std::vector<std::vector<reference::llama_reference>> cut;  // [layers - 1][row]
  for (std::size_t layers = 1; layers <= 2; ++layers) {
    llama_weights shorter = target;
    shorter.layers.resize(layers);
    cut.emplace_back(3, reference::llama_reference(shorter));
  }
  for (const int most : {4, 40}) {  // the fused products, and more tokens than they take
    std::vector<draft_entry> entries;
    std::vector<std::vector<double>> states;
    for (int row = 0; row < 3; ++row)
      for (int i = 0; i < most - row; ++i) {
        entries.push_back({.row = row, .token = (17 * i + 5 * row + most) % target.config.vocab_size});
        for (auto& models : cut) {
          (void)models[static_cast<std::size_t>(row)].forward(entries.back().token);
          states.push_back(models[static_cast<std::size_t>(row)].hidden());
        }
      }
    const draft_result got = steps.run(entries, 3, 3 * most);
    CHECK(got.states.size() == states.size() * hidden);
    for (std::size_t line = 0; line < states.size(); ++line)
      CHECK(distance(got.states, line, states[line]) < (test_device().is_host() ? 2e-5 : 0.03));
  }
}

TEST_CASE("taps that are no layers, and lines of another size than the model's, are refused") {
  llama_weights target = make_tiny_weights(9, tiny_config());
  for (const std::vector<int>& taps : {std::vector<int>{0}, {2, 1}, {1, 1}, {3}}) {
    target.config.taps = taps;
    CHECK_THROWS_AS(make_llama(test_device(), target), invalid_argument);
  }
  const tiny t;
  reference::random_integers random(test_seed());
  target.config.taps = {1, 2};
  const auto head = make_draft_head(test_device(), make_head(random, target, element_type::f32));
  step_limits limits = t.limits(1, 2);
  limits.hidden_size = head->shape().hidden_size;
  std::vector<step_definition> steps = t.model->steps(step_choice{.verify = true});  // made without taps
  for (step_definition& step : head->steps())
    if (!step.sampled) steps.push_back(std::move(step));
  executor_options options;
  options.draft = head->shape();
  step_executor executor(test_device(), limits, t.model->layout(), std::move(steps), std::move(options));
  CHECK_THROWS_WITH_AS(executor.capture(),
                       doctest::Contains("leaves states of 128 numbers a token, the executor's are of 256"),
                       capture_error);
}

TEST_CASE("lossless: a loop with a draft head of fewer tokens, under poison") {
  const tiny t;
  reference::random_integers random(test_seed());
  std::vector<int> taps;
  SUBCASE("fed the last layer's state") {}
  SUBCASE("fed two layers' states") {
    taps = {1, 2};
  }
  llama_weights target = t.weights;
  target.config.taps = taps;
  const draft_head_weights weights = make_head(random, target, element_type::f32);
  CHECK(weights.taps == taps);
  const auto head = make_draft_head(test_device(), weights);
  const auto model = make_llama(test_device(), target);
  step_limits limits = t.limits(4, 4);
  limits.hidden_size = head->shape().hidden_size;
  std::vector<step_definition> steps = model->steps(step_choice{.verify = true});
  for (step_definition& step : head->steps())
    if (!step.sampled) steps.push_back(std::move(step));
  executor_options options;
  options.poison = true;
  options.draft = head->shape();
  options.finish = finish_options{};
  step_executor executor(test_device(), limits, t.model->layout(), std::move(steps), std::move(options));
  executor.capture();
  step_executor plain = t.executor(1);
  plain.capture();
  const int texts = test_small() ? 2 : 6, length = test_small() ? 6 : 24;
  speculative_options how;
  how.drafts = draft_source::model();
  how.draft_length = 4;
  speculative_loop loop(executor, how);
  std::vector<heard> got(static_cast<std::size_t>(texts));
  std::vector<std::vector<std::int32_t>> prompts;
  for (heard& each : got) {
    prompts.push_back(
        random_prompt(random, static_cast<int>(random.between(1, 30)), t.weights.config.vocab_size));
    submit(loop, prompts.back(), length, each);
  }
  loop.run();
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].tokens == text_of(plain, prompts[i], length));
  CHECK(loop.statistics().drafted > 0);
  CHECK_FALSE(executor.fault());
}
