// The trained draft head of the example's model, from its file: PyTorch's own values, and what it is worth as the
// draft of a loop. STEPGRAPH_DRAFT names the file, beside which lie the values and the questions; STEPGRAPH_MODEL the
// target's.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "examples/llama/chat_template.hpp"
#include "examples/llama/draft_head.hpp"
#include "examples/llama/load_weights.hpp"
#include "examples/llama/tokenizer.hpp"
#include "runtime/speculative_loop.hpp"
#include "tests/examples/draft_head_steps.hpp"
#include "tests/reference/llama_forward.hpp"

using namespace stepgraph;
using namespace stepgraph::llama;

namespace {

/// The files, or null and a message.
bool files_there() {
  const bool there = std::getenv("STEPGRAPH_MODEL") && std::getenv("STEPGRAPH_DRAFT");
  if (!there) MESSAGE("STEPGRAPH_MODEL or STEPGRAPH_DRAFT is not set: skipped");
  return there;
}

std::filesystem::path draft_path() {
  return std::getenv("STEPGRAPH_DRAFT");
}

std::ifstream beside(const std::string& name) {
  std::ifstream file(draft_path().parent_path() / name);
  REQUIRE(file.is_open());
  return file;
}

/// The states that the training script fed: multiples of 1 / 16 between -8 and 8 from a congruential generator.
std::vector<std::vector<float>> case_states(int entries, int hidden) {
  std::uint64_t seed = 12345;
  std::vector<std::vector<float>> states(static_cast<std::size_t>(entries));
  for (std::vector<float>& state : states)
    for (int i = 0; i < hidden; ++i) {
      seed = (seed * 1103515245 + 12345) % (std::uint64_t{1} << 31);
      state.push_back(static_cast<float>(static_cast<int>((seed >> 16) % 257) - 128) / 16.0f);
    }
  return states;
}

/// Texts that part must do so where the target's two logits are within rounding: steps of other widths sum in
/// another order. Shown where it happens.
void check_same_or_tied(const llama_weights& weights, std::vector<std::int32_t> prompt,
                        const std::vector<std::int32_t>& one, const std::vector<std::int32_t>& other) {
  const auto [first, second] = std::ranges::mismatch(one, other);
  if (first == one.end() && second == other.end()) return;
  REQUIRE(first != one.end());
  REQUIRE(second != other.end());
  prompt.insert(prompt.end(), one.begin(), first);
  reference::llama_reference plain(weights);
  std::vector<float> logits;
  for (const std::int32_t token : prompt) logits = plain.forward(token);
  double squares = 0;
  for (const float value : logits) squares += double(value) * value;
  const double scale = std::sqrt(squares / static_cast<double>(logits.size()));
  const double gap =
      std::abs(logits[static_cast<std::size_t>(*first)] - logits[static_cast<std::size_t>(*second)]);
  MESSAGE("after ", first - one.begin(), " tokens: ", *first, " of logit ",
          logits[static_cast<std::size_t>(*first)], " or ", *second, " of logit ",
          logits[static_cast<std::size_t>(*second)]);
  CHECK(gap < (test_device().is_host() ? 1e-3 : 8e-2) * scale);
}

}  // namespace

TEST_CASE("trained head: hidden states and drafts are those of the script that trained it") {
  if (!files_there()) return;
  const llama_weights target = load_llama_weights(std::filesystem::path(std::getenv("STEPGRAPH_MODEL")));
  const draft_head_weights head = load_draft_head(draft_path(), target);
  const nlohmann::json known = nlohmann::json::parse(beside("draft_head_case.json"));
  const auto tokens = known.at("tokens").get<std::vector<std::int32_t>>();
  const int hidden = target.config.hidden_size, before = (head.model.fusion->states - 1) * hidden;
  const std::vector<std::vector<float>> states =
      case_states(static_cast<int>(tokens.size()) - 1, before + hidden);
  draft_steps steps(head.model, 1);
  std::vector<draft_entry> entries;
  for (std::size_t i = 0; i < states.size(); ++i)
    entries.push_back({.row = 0, .token = tokens[i + 1], .state = states[i]});
  // the script rounds the embedding to bfloat16, a GPU everything
  const double tolerance = test_device().is_host() ? 1e-2 : 0.05;
  for (const nlohmann::json& want : known.at("entries")) {
    const draft_result got = steps.run(entries, 1, 8);
    const auto values = want.at("hidden").get<std::vector<float>>();
    const double scale = want.at("hidden_norm").get<double>() / std::sqrt(hidden);
    for (std::size_t i = 0; i < values.size(); ++i)
      CHECK(std::abs(got.states[static_cast<std::size_t>(before) + i] - values[i]) <
            tolerance * (scale + std::abs(values[i])));
    const auto best = std::ranges::max_element(got.logits);
    CHECK(head.target_ids[static_cast<std::size_t>(best - got.logits.begin())] ==
          want.at("draft").get<int>());
    CHECK(*best == doctest::Approx(want.at("top_logit").get<double>()).epsilon(tolerance));
    entries = {{.row = 0, .token = want.at("draft").get<std::int32_t>(), .state = got.states}};
  }
}

TEST_CASE("trained head: tokens a round on questions that it was not trained on") {
  if (!files_there()) return;
  const gguf_file file{std::filesystem::path(std::getenv("STEPGRAPH_MODEL"))};
  const tokenizer words(file);
  const chat_template chat(file, words);
  llama_weights weights = load_llama_weights(file);
  const draft_head_weights head_weights = load_draft_head(draft_path(), weights);
  weights.config.taps = head_weights.taps;
  const auto model = make_llama(test_device(), weights);
  const auto head = make_draft_head(test_device(), head_weights);
  // on the host all questions take minutes
  const bool all = !test_small() && (!test_device().is_host() || std::getenv("STEPGRAPH_TEST_LONG"));
  const int drafts = 4, rows = 8, most = all ? 20 : test_small() ? 2 : 4;
  const step_limits limits{.max_rows = rows,
                           .max_step_tokens = 128,
                           .max_draft_tokens = drafts,
                           .max_requests = rows,
                           .max_context = 256,
                           .vocab_size = weights.config.vocab_size,
                           .hidden_size = head->shape().hidden_size};
  std::vector<step_definition> steps = model->steps(step_choice{.verify = true});
  for (step_definition& step : head->steps())
    if (!step.sampled) steps.push_back(std::move(step));
  executor_options options;
  options.draft = head->shape();
  options.draft_lengths = {drafts};
  options.finish = finish_options{{chat.end_of_turn()}};
  step_executor executor(test_device(), limits, model->layout(), std::move(steps), std::move(options));
  executor.capture();

  // what the head must be worth: of questions that the target made up, and of such as people ask
  struct question_set {
    std::string file;
    double least;  // tokens a round
  };
  for (const question_set& set :
       {question_set{"held_out.txt", 2.4}, question_set{"held_out_invented.txt", 2.7}}) {
    CAPTURE(set.file);
    std::vector<std::vector<std::int32_t>> texts[2], prompts;
    std::ifstream questions = beside(set.file);
    for (std::string question; std::ssize(prompts) < most && std::getline(questions, question);)
      prompts.push_back(chat.encode({{chat_message{"user", question}}}, true));
    REQUIRE(std::ssize(prompts) == most);
    double tokens_a_round = 0;
    for (const int length : {0, drafts}) {
      speculative_options how;
      if (length > 0) how.drafts = draft_source::model();
      how.draft_length = length;
      speculative_loop loop(executor, how);
      auto& mine = texts[length > 0];
      mine.resize(static_cast<std::size_t>(most));
      for (std::size_t i = 0; i < mine.size(); ++i)
        loop.submit({.prompt = prompts[i],
                     .max_tokens = test_small() ? 16 : 128,
                     .on_token = [&mine, i](std::int32_t token) { mine[i].push_back(token); }});
      loop.run();
      if (length == 0) continue;
      const speculation_statistics& done = loop.statistics();
      std::uint64_t rounds = 0;
      for (const std::uint64_t count : done.by_accepted) rounds += count;
      tokens_a_round = 1.0 + static_cast<double>(done.accepted) / static_cast<double>(rounds);
      MESSAGE(set.file, ": ", most, " questions, ", done.emitted, " tokens, ", rounds,
              " rounds: ", tokens_a_round, " tokens a round");
    }
    CHECK_FALSE(executor.fault());
    int same = 0;
    for (std::size_t i = 0; i < texts[0].size(); ++i) {
      same += texts[0][i] == texts[1][i];
      check_same_or_tied(weights, prompts[i], texts[0][i], texts[1][i]);
    }
    MESSAGE(same, " of ", most, " texts are those of plain decoding to the last token");
    if (all) CHECK(tokens_a_round > set.least);
  }
}
