// A driver loop on stepgraph: loads a small Llama model, captures its steps once per bucket at the maximum
// context width, and lets it answer prompts from replays alone, with drafts if asked for. What an engine does
// around stepgraph is in `make_executor` and `answer`; the rest is options and printing.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "examples/driver_options.hpp"
#include "examples/live_view.hpp"
#include "examples/llama/chat_template.hpp"
#include "examples/llama/draft_head.hpp"
#include "examples/llama/gguf.hpp"
#include "examples/llama/llama_model.hpp"
#include "examples/llama/load_weights.hpp"
#include "examples/llama/tokenizer.hpp"
#include "examples/loop_report.hpp"
#include "examples/progress_bar.hpp"
#include "graphs/error.hpp"

namespace {

using namespace stepgraph;
using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

device choose_device(const std::string& where) {
  if (where == "host") return device::host();
  return where == "cuda" ? device::cuda() : device::best();
}

/// The variant of a step that this run's rounds take. Throws if they take no such step.
int variant_of(const std::vector<step_definition>& steps, step_kind kind, bool sampled, bool trees) {
  const auto suits = [&](const step_definition& step) {
    return step.kind == kind && step.sampled == sampled &&
           (kind != step_kind::target_verify || step.tree == trees);
  };
  auto found = std::ranges::find_if(steps, suits);
  // what emits nothing is not sampled
  if (found == steps.end()) found = std::ranges::find(steps, kind, &step_definition::kind);
  STEPGRAPH_EXPECTS(
      found != steps.end(), "--dot-step ", to_string(kind),
      ": this run has no such step; target_verify needs --draft or --lookup, the draft's need --draft");
  return found->variant;
}

/// Every prompt as tokens, in the model's chat format. Throws if one leaves no room for an answer.
std::vector<std::vector<std::int32_t>> encode_prompts(const driver_options& wanted,
                                                      const llama::chat_template& chat) {
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& prompt : wanted.prompts) {
    std::vector<llama::chat_message> messages;
    if (!wanted.system.empty()) messages.push_back({"system", wanted.system});
    messages.push_back({"user", prompt});
    prompts.push_back(chat.encode(messages, true));
    STEPGRAPH_EXPECTS(std::ssize(prompts.back()) < wanted.context, "prompt ", prompts.size(), " has ",
                      prompts.back().size(), " tokens and leaves no room for an answer in --context ",
                      wanted.context);
  }
  return prompts;
}

step_executor make_executor(const driver_options& wanted, const llama::llama_model& model,
                            const llama::draft_model* draft, std::int32_t end_of_turn) {
  const int rows = static_cast<int>(wanted.prompts.size()), most = wanted.most_drafts();
  const bool sampled = !is_greedy(wanted.sampling), trees = wanted.lookup > 0 && wanted.branches > 1;
  const step_limits limits{.max_rows = rows,
                           .max_step_tokens = std::max(wanted.step_tokens, rows * (most + 1)),
                           .max_draft_tokens = most,
                           .max_requests = rows,
                           .max_context = wanted.context,
                           .page_size = wanted.page_size,
                           .vocab_size = model.config().vocab_size,
                           .hidden_size = draft ? draft->shape().hidden_size : 0};
  std::vector<step_definition> steps =
      model.steps(llama::step_choice{.verify = most > 0, .sampled = sampled, .trees = trees});
  // a verify step of any K has a bucket of its own width
  std::vector<int> widths;
  for (int k = 1; k <= most; ++k) widths.push_back(rows * (k + 1));
  executor_options how{.token_buckets = bucket_policy::powers_of_two(limits.max_step_tokens).with(widths),
                       .poison = wanted.poison,
                       .finish = finish_options{{end_of_turn}},
                       .timing = wanted.no_times ? step_timing::off : step_timing::steps,
                       .programmatic_launch = !wanted.no_programmatic};
  if (wanted.one_bucket) {
    how.row_buckets = bucket_policy::exactly({rows});
    how.token_buckets = bucket_policy::exactly({limits.max_step_tokens});
  }
  if (draft) {
    how.draft = draft->shape();
    if (!wanted.adaptive) how.draft_lengths = {most};
    for (step_definition& step : draft->steps())
      if (sampled || !step.sampled) steps.push_back(std::move(step));
  }
  const int drawn = wanted.dot.empty() ? 0 : variant_of(steps, wanted.dot_step, sampled, trees);
  step_executor executor(model.where(), limits, model.layout(), std::move(steps), std::move(how));
  if (!wanted.eager) {
    const auto start = clock_type::now();
    progress_bar bar("capture");
    executor.capture([&](int done, int all) { bar.show(done, all); });
    bar.finish();
    report_captures(executor, seconds_since(start));
  }
  if (!wanted.dot.empty()) {
    std::ofstream out(wanted.dot);
    const step_kind kind = wanted.dot_step;
    const int tokens =
        kind == step_kind::extend ? limits.max_step_tokens : rows * (is_ragged(kind) ? most + 1 : 1);
    executor.dot(kind, rows, tokens, drawn, out);
    STEPGRAPH_EXPECTS(out.flush(), "--dot: cannot write ", wanted.dot);
  }
  return executor;
}

speculative_options loop_options(const driver_options& wanted) {
  return {.drafts = wanted.lookup > 0      ? draft_source::prompt_lookup(wanted.branches)
                    : wanted.draft.empty() ? draft_source::none()
                                           : draft_source::model(),
          .draft_length = wanted.most_drafts(),
          .adaptive = wanted.adaptive,
          .run_ahead = !wanted.wait,
          .eager = wanted.eager};
}

/// One text as it comes.
struct answer_text {
  std::vector<std::int32_t> tokens{};
  std::string words{};
  generation_end end{};
};

/// Answers all prompts by one loop.
loop_run run_loop(speculative_loop& loop, const driver_options& wanted,
                  const std::vector<std::vector<std::int32_t>>& prompts, std::vector<answer_text>& answers,
                  const std::function<void(std::size_t, std::int32_t)>& on_token) {
  loop_run run;
  const auto start = clock_type::now();
  for (std::size_t i = 0; i < prompts.size(); ++i)
    loop.submit({.prompt = prompts[i],
                 .max_tokens = wanted.max_tokens,
                 .sampling = wanted.sampling,
                 .on_token =
                     [&, i](std::int32_t token) {
                       if (run.first_token == 0) run.first_token = seconds_since(start);
                       if (!answers[i].tokens.empty()) ++run.after_first;
                       answers[i].tokens.push_back(token);
                       ++run.tokens;
                       if (on_token) on_token(i, token);
                     },
                 .on_end = [&, i](const generation_end& end) { answers[i].end = end; }});
  loop.run();
  run.seconds = seconds_since(start);
  return run;
}

/// Answers every prompt; true if none failed.
bool answer(const driver_options& wanted) {
  const device where = choose_device(wanted.where);
  const llama::gguf_file file{std::filesystem::path(wanted.model)};
  const llama::tokenizer words(file);
  const llama::chat_template chat(file, words);
  const llama::llama_config config = llama::read_llama_config(file);
  STEPGRAPH_EXPECTS(wanted.context <= config.max_context, "--context ", wanted.context,
                    " is over the model's ", config.max_context);
  const auto prompts = encode_prompts(wanted, chat);
  llama::llama_weights weights = llama::load_llama_weights(file);
  std::unique_ptr<llama::draft_model> draft;
  if (!wanted.draft.empty()) {
    const auto head = llama::load_draft_head(std::filesystem::path(wanted.draft), weights);
    draft = llama::make_draft_head(where, head);
    weights.config.taps = head.taps;
  }
  const auto model = llama::make_llama(where, weights);
  std::fprintf(stderr, "%s: %d layers, %d tokens, on %s\n",
               wanted.model.substr(wanted.model.rfind('/') + 1).c_str(), config.layers, config.vocab_size,
               where.name().c_str());
  step_executor executor = make_executor(wanted, *model, draft.get(), chat.end_of_turn());

  const std::size_t rows = prompts.size();
  std::vector<answer_text> answers(rows);
  std::vector<llama::stream_decoder> decoders(rows, llama::stream_decoder(words));
  live_view view(rows);
  speculative_loop loop(executor, loop_options(wanted));
  const loop_run run = run_loop(loop, wanted, prompts, answers, [&](std::size_t i, std::int32_t token) {
    if (token == chat.end_of_turn()) return;
    const std::string text = decoders[i].push(token);
    answers[i].words += text;
    if (rows == 1) std::cout << text << std::flush;
    view.add(i, text);
  });
  view.finish();

  bool failed = false;
  for (std::size_t i = 0; i < rows; ++i) {
    answers[i].words += decoders[i].finish();
    if (rows > 1)
      std::cout << "[" << i + 1 << "] " << wanted.prompts[i] << "\n" << answers[i].words << "\n\n";
    const generation_end& end = answers[i].end;
    failed = failed || end.reason == finish_reason::fault;
    if (end.reason == finish_reason::fault)
      std::fprintf(stderr, "prompt %zu failed: %s\n", i + 1, to_string(end.status));
    else if (end.reason != finish_reason::end_of_sequence)
      std::fprintf(stderr, "\n(prompt %zu stopped by its %s)", i + 1, to_string(end.reason));
  }
  std::cout << std::endl;
  report_faults(executor, wanted.poison);
  report_run(executor, loop.statistics(), run);
  if (!wanted.drafts()) return !failed;

  // the same prompts once more, a token a round
  executor.reset_fault();
  std::vector<answer_text> plain(rows);
  speculative_loop without(executor, {.run_ahead = !wanted.wait, .eager = wanted.eager});
  const loop_run plain_run = run_loop(without, wanted, prompts, plain, {});
  report_faults(executor, wanted.poison);
  std::vector<std::optional<std::size_t>> parts(rows);  // where the texts part
  for (std::size_t i = 0; i < rows; ++i)
    if (plain[i].tokens != answers[i].tokens)
      parts[i] = std::ranges::mismatch(plain[i].tokens, answers[i].tokens).in1 - plain[i].tokens.begin();
  report_comparison(run, plain_run, parts, !is_greedy(wanted.sampling));
  return !failed;
}

}  // namespace

int main(int argc, char** argv) {
  driver_options wanted;
  CLI::App app{
      "Answers prompts with a small Llama model, from CUDA graph (or host graph) replays of its steps."};
  add_options(app, wanted);
  CLI11_PARSE(app, argc, argv);
  try {
    return answer(wanted) ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "\ndriver_loop: %s\n", failure.what());
    return 1;
  }
}
