// Writes the logits of a model, one decode step replayed for each token, for comparison with another
// implementation of the same file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/llama/llama_model.hpp"
#include "examples/llama/load_weights.hpp"
#include "graphs/error.hpp"
#include "runtime/step_executor.hpp"

namespace {

using namespace stepgraph;
using clock_type = std::chrono::steady_clock;

struct options {
  std::string model;
  std::string tokens;
  std::string out;
  std::string where = "host";
  int generate = 0;
};

std::vector<std::int32_t> read_tokens(const std::string& path) {
  std::ifstream in(path);
  STEPGRAPH_EXPECTS(in.is_open(), "--tokens ", path, ": cannot be opened");
  std::vector<std::int32_t> ids;
  for (std::int32_t id; in >> id;) ids.push_back(id);
  STEPGRAPH_EXPECTS(in.eof(), "--tokens ", path, ": what follows token ", ids.size(), " is no token id");
  STEPGRAPH_EXPECTS(!ids.empty(), "--tokens ", path, ": holds no token id");
  return ids;
}

/// How far the largest logit is above the second.
float top_gap(std::vector<float> logits) {
  std::ranges::partial_sort(logits, logits.begin() + 2, std::greater<>());
  return logits[0] - logits[1];
}

nlohmann::json write_logits(const options& wanted) {
  const std::vector<std::int32_t> given = read_tokens(wanted.tokens);
  const llama::llama_weights weights = llama::load_llama_weights(std::filesystem::path(wanted.model));
  const device where = wanted.where == "cuda" ? device::cuda() : device::host();
  const auto model = llama::make_llama(where, weights);
  const int vocab = weights.config.vocab_size;
  const std::size_t steps = given.size() + static_cast<std::size_t>(std::max(wanted.generate - 1, 0));
  STEPGRAPH_EXPECTS(steps <= static_cast<std::size_t>(weights.config.max_context),
                    "--tokens and --generate come to ", steps, " steps, over the model's context of ",
                    weights.config.max_context);

  const float* logits = nullptr;
  std::vector<step_definition> definitions = model->steps();
  std::erase_if(definitions, [](const step_definition& step) { return step.kind != step_kind::decode; });
  for (step_definition& step : definitions)
    step.body = [&logits, body = step.body](const step_context& context) {
      step_context with_logits = context;
      with_logits.ranked_argmax = nullptr;
      body(with_logits);
      logits = llama::llama_model::logits(context);
    };
  const step_limits limits{.max_rows = 1,
                           .max_step_tokens = 1,
                           .max_requests = 1,
                           .max_context = static_cast<std::int64_t>(steps),
                           .vocab_size = vocab};
  step_executor executor(where, limits, model->layout(), definitions);
  executor.capture();

  std::ofstream out(wanted.out, std::ios::binary);
  STEPGRAPH_EXPECTS(out.is_open(), "--out ", wanted.out, ": cannot be opened");
  std::vector<float> line(static_cast<std::size_t>(vocab));
  std::vector<std::int32_t> generated;
  std::vector<float> gaps;
  std::chrono::duration<double> prompt_time{}, decode_time{};
  const request_id request = executor.open();
  for (std::size_t i = 0; i < steps; ++i) {
    step_row row{.request = request, .tokens = 1};
    if (i < given.size()) row.token_ids = std::span(given).subspan(i, 1);
    const auto start = clock_type::now();
    const row_result result = executor.wait(*executor.replay(step_kind::decode, {&row, 1}))[0];
    (i < given.size() ? prompt_time : decode_time) += clock_type::now() - start;
    STEPGRAPH_EXPECTS(result.status == 0, "step ", i,
                      " failed: ", to_string(static_cast<row_status>(result.status)));
    executor.stream().copy(line.data(), logits, line.size() * sizeof(float));
    executor.stream().synchronize();
    out.write(reinterpret_cast<const char*>(line.data()),
              static_cast<std::streamsize>(line.size() * sizeof(float)));
    if (wanted.generate > 0 && i + 1 >= given.size()) {
      generated.push_back(result.token);
      gaps.push_back(top_gap(line));
    }
  }
  out.close();
  STEPGRAPH_EXPECTS(out, "--out ", wanted.out, ": cannot be written");
  return {{"device", where.name()},
          {"vocab", vocab},
          {"rows", steps},
          {"generated", generated},
          {"top_gaps", gaps},
          {"prompt_seconds", prompt_time.count()},
          {"decode_steps", steps - given.size()},
          {"decode_seconds", decode_time.count()}};
}

}  // namespace

int main(int argc, char** argv) {
  options wanted;
  CLI::App app{
      "Feeds tokens to a Llama model by replays of its decode step and writes the logits after each. "
      "A summary goes to stdout as JSON."};
  app.add_option("--model", wanted.model, "GGUF file of a Llama-architecture model")->required();
  app.add_option("--tokens", wanted.tokens, "text file of token ids")->required();
  app.add_option("--out", wanted.out, "logits, raw float32 [rows, vocab]: a row for each token that was fed")
      ->required();
  app.add_option("--device", wanted.where, "where to run")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  app.add_option("--generate", wanted.generate,
                 "tokens of greedy continuation; all but the last are fed, too, and have logits")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << write_logits(wanted) << std::endl;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "peer_logits: %s\n", failure.what());
    return 1;
  }
  return 0;
}
