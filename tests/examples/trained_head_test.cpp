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

/// Root of the mean of squares.
double scale_of(const std::vector<float>& logits) {
  double squares = 0;
  for (const float value : logits) squares += double(value) * value;
  return std::sqrt(squares / static_cast<double>(logits.size()));
}

/// The target's own logits along a given text, by steps of one token and by verify steps of five. Stays where it is.
class own_logits {
 public:
  static constexpr int drafts = 4;

  explicit own_logits(const llama_model& model)
      : vocab_(model.config().vocab_size),
        executor_(test_device(),
                  {.max_rows = 1,
                   .max_step_tokens = 128,
                   .max_draft_tokens = drafts,
                   .max_requests = 1,
                   .max_context = 256,
                   .vocab_size = vocab_,
                   .hidden_size = states_of(model.config()) * model.config().hidden_size},
                  model.layout(), steps(model), {.row_buckets = bucket_policy::exactly({1})}) {}
  own_logits(const own_logits&) = delete;
  own_logits& operator=(const own_logits&) = delete;

  /// After the prompt and after each token of `text` but the last.
  std::vector<std::vector<float>> by_one(const std::vector<std::int32_t>& prompt,
                                         const std::vector<std::int32_t>& text) {
    const request_id request = begin(prompt);
    std::vector<std::vector<float>> all{line(0)};
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      step_row row{.request = request, .tokens = 1, .token_ids = std::span(text).subspan(i, 1)};
      executor_.wait(executor_.run_eager(step_kind::decode, {&row, 1}));
      all.push_back(line(0));
    }
    executor_.close(request);
    return all;
  }

  /// The same, five tokens a step as far as the text is what the verify steps keep.
  std::vector<std::vector<float>> by_five(const std::vector<std::int32_t>& prompt,
                                          const std::vector<std::int32_t>& text) {
    const request_id request = begin(prompt);
    std::vector<std::vector<float>> all{line(0)};
    for (std::size_t i = 0; first_ == text[0] && i + drafts + 1 < text.size(); i += drafts + 1) {
      step_row row{
          .request = request, .tokens = drafts + 1, .token_ids = std::span(text).subspan(i + 1, drafts)};
      const row_result result = executor_.wait(executor_.run_eager(step_kind::target_verify, {&row, 1}))[0];
      for (int j = 0; j < std::min(result.count, drafts + 1); ++j) all.push_back(line(j));
      if (result.count < drafts + 1 || result.token != text[i + drafts + 1]) break;
    }
    executor_.close(request);
    return all;
  }

 private:
  request_id begin(const std::vector<std::int32_t>& prompt) {
    const request_id request = executor_.open();
    step_row row{.request = request, .tokens = static_cast<int>(prompt.size()), .token_ids = prompt};
    first_ = executor_.wait(executor_.run_eager(step_kind::extend, {&row, 1}))[0].token;
    return request;
  }

  std::vector<float> line(int number) {
    std::vector<float> values(static_cast<std::size_t>(vocab_));
    executor_.stream().copy(values.data(), logits_ + std::int64_t{number} * vocab_, 4 * values.size());
    executor_.stream().synchronize();
    return values;
  }

  std::vector<step_definition> steps(const llama_model& model) {
    std::vector<step_definition> steps = model.steps(step_choice{.verify = true});
    for (step_definition& step : steps)
      step.body = [this, body = step.body](const step_context& context) {
        step_context with_logits = context;
        with_logits.ranked_argmax = nullptr;
        body(with_logits);
        logits_ = llama_model::logits(context);
      };
    return steps;
  }

  int vocab_;
  std::int32_t first_ = 0;  // token after the prompt
  const float* logits_ = nullptr;
  step_executor executor_;
};

/// What the texts of a test have shown, in parts of the logits' scale.
struct seen_rounding {
  double gap = 0;         // largest between the two tokens where texts part
  double difference = 0;  // largest between a logit by steps of one and by steps of five tokens
  double behind = 0;      // largest by which a chosen token's logit is less than the largest
};

/// Logits so near, in parts of their scale, may change places. Measured on an H200, 40 texts: where texts part at most 0.012,
/// and a chosen token at most 0.012 behind the largest; single logits differ by up to 0.12 between steps of one and of
/// five tokens, which sum in another order.
double near_tie() {
  return test_device().is_host() ? 1e-3 : 3e-2;
}

/// Notes how far the logits are apart where the texts part, which may only be where they are within rounding.
void note_parting(own_logits& target, const std::vector<std::int32_t>& prompt,
                  const std::vector<std::int32_t>& one, const std::vector<std::int32_t>& other,
                  seen_rounding& seen) {
  const std::vector<std::vector<float>> alone = target.by_one(prompt, one),
                                        together = target.by_five(prompt, one);
  for (std::size_t i = 0; i < std::min(alone.size(), together.size()); ++i) {
    double most = 0;
    for (std::size_t id = 0; id < alone[i].size(); ++id)
      most = std::max(most, std::abs(double(alone[i][id]) - double(together[i][id])));
    seen.difference = std::max(seen.difference, most / scale_of(alone[i]));
  }
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const float most = *std::ranges::max_element(alone[i]),
                chosen = alone[i][static_cast<std::size_t>(one[i])];
    seen.behind = std::max(seen.behind, (double(most) - double(chosen)) / scale_of(alone[i]));
  }
  const auto [first, second] = std::ranges::mismatch(one, other);
  if (first == one.end() && second == other.end()) return;
  REQUIRE(first != one.end());
  REQUIRE(second != other.end());
  const std::vector<float>& logits = alone[static_cast<std::size_t>(first - one.begin())];
  const float kept = logits[static_cast<std::size_t>(*first)],
              left = logits[static_cast<std::size_t>(*second)];
  const double gap = std::abs(double(kept) - double(left)) / scale_of(logits);
  seen.gap = std::max(seen.gap, gap);
  MESSAGE("after ", first - one.begin(), " tokens: ", *first, " of logit ", kept, " or ", *second,
          " of logit ", left, ", a gap of ", gap, " of their scale");
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
  own_logits target(*model);

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
    seen_rounding seen;
    for (std::size_t i = 0; i < texts[0].size(); ++i) {
      same += texts[0][i] == texts[1][i];
      note_parting(target, prompts[i], texts[0][i], texts[1][i], seen);
    }
    MESSAGE(same, " of ", most, " texts are those of plain decoding to the last token; largest gap ",
            seen.gap, ", largest difference of logits by steps of one and five tokens ", seen.difference,
            ", of a chosen token from the largest ", seen.behind, " of the logits' scale");
    CHECK(seen.gap < near_tie());
    CHECK(seen.behind < near_tie());
    if (all) CHECK(tokens_a_round > set.least);
  }
}
