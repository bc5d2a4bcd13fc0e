// A driver loop on stepgraph: loads a small Llama model, captures its steps once per bucket at the maximum
// context width, and lets it answer prompts from replays alone. What an engine does around stepgraph is in
// `answer`; the rest is options and printing.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "examples/llama/chat_template.hpp"
#include "examples/llama/gguf.hpp"
#include "examples/llama/llama_model.hpp"
#include "examples/llama/load_weights.hpp"
#include "examples/llama/scheduler.hpp"
#include "examples/llama/tokenizer.hpp"
#include "examples/progress_bar.hpp"
#include "graphs/error.hpp"
#include "runtime/prompt_lookup.hpp"
#include "runtime/step_executor.hpp"

namespace {

using namespace stepgraph;
using clock_type = std::chrono::steady_clock;

struct options {
  std::string model;
  std::vector<std::string> prompts;
  std::string system;
  std::string where = "auto";
  int max_tokens = 256;
  std::int64_t context = 2048;
  int page_size = 16;
  int step_tokens = 32;
  bool eager = false;
  bool poison = false;
  std::string dot;
  int lookup = 0;
};

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

device choose_device(const std::string& where) {
  if (where == "host") return device::host();
  return where == "cuda" ? device::cuda() : device::best();
}

void report_captures(const step_executor& executor, double seconds) {
  const auto captures = executor.captures();
  std::size_t nodes = 0, bytes = 0;
  for (const capture_report& each : captures) {
    nodes += each.nodes;
    bytes += each.device_bytes;
  }
  std::fprintf(stderr, "captured %zu steps, %zu nodes in all, in %.2f s", captures.size(), nodes, seconds);
  if (bytes > 0) std::fprintf(stderr, ", %.1f MB taken by the driver", double(bytes) / 1e6);
  std::fprintf(stderr, "\n\n");
}

void report(const step_executor& executor, const llama::scheduler& loop, std::size_t generated,
            double prompt_seconds, double decode_seconds) {
  if (const llama::draft_statistics& drafts = loop.drafts(); drafts.rounds > 0) {
    std::fprintf(stderr, "\n%llu of %llu drafts accepted in %llu rounds; rounds by accepted drafts:",
                 static_cast<unsigned long long>(drafts.accepted),
                 static_cast<unsigned long long>(drafts.drafted),
                 static_cast<unsigned long long>(drafts.rounds));
    for (const std::uint64_t count : drafts.rounds_by_accepted)
      std::fprintf(stderr, " %llu", static_cast<unsigned long long>(count));
  }
  const bucket_statistics total = executor.statistics().total();
  std::fprintf(stderr, "\n%llu prompt tokens in %.2f s; %zu tokens in %.2f s, %.1f tokens/s\n",
               static_cast<unsigned long long>(loop.prompt_tokens()), prompt_seconds, generated,
               decode_seconds, decode_seconds > 0 ? double(generated) / decode_seconds : 0.0);
  if (total.replays == 0) {
    std::fprintf(stderr, "%llu eager steps, no replays\n",
                 static_cast<unsigned long long>(executor.statistics().eager_steps));
    return;
  }
  std::size_t nodes = 0;
  for (const capture_report& each : executor.captures())
    if (each.key.kind == step_kind::decode) nodes = each.nodes;
  std::fprintf(stderr, "%zu captures, %llu replays, %zu nodes a decode step\n", executor.captures().size(),
               static_cast<unsigned long long>(total.replays), nodes);
  std::fprintf(stderr,
               "pages: %llu live of %llu captured, %.1f %% of what capture at full width would touch\n",
               static_cast<unsigned long long>(total.live_pages),
               static_cast<unsigned long long>(total.captured_pages),
               100.0 * double(total.live_pages) / double(total.captured_pages));
}

/// Every prompt as tokens, in the model's chat format. Throws if one leaves no room for an answer.
std::vector<llama::conversation> encode_prompts(const options& wanted, const llama::chat_template& chat) {
  std::vector<llama::conversation> talks;
  for (const std::string& prompt : wanted.prompts) {
    std::vector<llama::chat_message> messages;
    if (!wanted.system.empty()) messages.push_back({"system", wanted.system});
    messages.push_back({"user", prompt});
    talks.push_back({.prompt = chat.encode(messages, true), .max_tokens = wanted.max_tokens});
    STEPGRAPH_EXPECTS(std::ssize(talks.back().prompt) < wanted.context, "prompt ", talks.size(), " has ",
                      talks.back().prompt.size(), " tokens and leaves no room for an answer in --context ",
                      wanted.context);
  }
  return talks;
}

step_executor make_executor(const options& wanted, const llama::llama_model& model) {
  const int rows = static_cast<int>(wanted.prompts.size());
  const step_limits limits{.max_rows = rows,
                           .max_step_tokens = std::max(wanted.step_tokens, rows * (wanted.lookup + 1)),
                           .max_draft_tokens = wanted.lookup,
                           .max_requests = rows,
                           .max_context = wanted.context,
                           .page_size = wanted.page_size,
                           .vocab_size = model.config().vocab_size};
  step_executor executor(model.where(), limits, model.layout(), model.steps(wanted.lookup > 0),
                         {.poison = wanted.poison});
  if (!wanted.eager) {
    const auto start = clock_type::now();
    progress_bar bar("capture");
    executor.capture([&](int done, int all) { bar.show(done, all); });
    bar.finish();
    report_captures(executor, seconds_since(start));
  }
  if (!wanted.dot.empty()) {
    std::ofstream out(wanted.dot);
    executor.dot(step_kind::decode, rows, rows, 0, out);
    STEPGRAPH_EXPECTS(out.flush(), "--dot: cannot write ", wanted.dot);
  }
  return executor;
}

llama::scheduler_options scheduling(const options& wanted, std::int32_t end_of_turn) {
  llama::scheduler_options how{.end_of_turn = end_of_turn,
                               .mode = wanted.eager ? llama::step_mode::eager : llama::step_mode::replay};
  if (wanted.lookup > 0)
    how.draft = [](std::span<const std::int32_t> history, std::span<std::int32_t> drafts) {
      return prompt_lookup(history, drafts);
    };
  return how;
}

/// Answers every prompt; true if none failed.
bool answer(const options& wanted) {
  const device where = choose_device(wanted.where);
  const llama::gguf_file file{std::filesystem::path(wanted.model)};
  const llama::tokenizer words(file);
  const llama::chat_template chat(file, words);
  const llama::llama_config config = llama::read_llama_config(file);
  STEPGRAPH_EXPECTS(wanted.context <= config.max_context, "--context ", wanted.context,
                    " is over the model's ", config.max_context);
  std::vector<llama::conversation> talks = encode_prompts(wanted, chat);
  const auto model = llama::make_llama(where, llama::load_llama_weights(file));
  std::fprintf(stderr, "%s: %d layers, %d tokens, on %s\n",
               wanted.model.substr(wanted.model.rfind('/') + 1).c_str(), config.layers, config.vocab_size,
               where.name().c_str());
  step_executor executor = make_executor(wanted, *model);

  const std::size_t rows = talks.size();
  std::vector<std::string> answers(rows);
  std::vector<llama::stream_decoder> decoders(rows, llama::stream_decoder(words));
  llama::scheduler loop(executor, scheduling(wanted, chat.end_of_turn()));
  for (std::size_t i = 0; i < rows; ++i) {
    talks[i].on_token = [&, i](std::int32_t token) {
      const std::string text = decoders[i].push(token);
      answers[i] += text;
      if (rows == 1) std::cout << text << std::flush;
    };
    loop.add(talks[i]);
  }

  const auto start = clock_type::now();
  double first_token = 0;
  while (loop.step()) {
    const bool any = std::ranges::any_of(talks, [](const auto& talk) { return !talk.generated.empty(); });
    if (first_token == 0 && any) first_token = seconds_since(start);
  }
  const double all = seconds_since(start);

  std::size_t generated = 0;
  bool failed = false;
  for (std::size_t i = 0; i < rows; ++i) {
    answers[i] += decoders[i].finish();
    if (rows > 1) std::cout << "[" << i + 1 << "] " << wanted.prompts[i] << "\n" << answers[i] << "\n\n";
    generated += talks[i].generated.size();
    failed = failed || talks[i].stopped == llama::stop_reason::failed;
    if (talks[i].stopped == llama::stop_reason::failed)
      std::fprintf(stderr, "prompt %zu failed: %s\n", i + 1, to_string(talks[i].status));
    else if (talks[i].stopped != llama::stop_reason::end_of_turn)
      std::fprintf(stderr, "\n(prompt %zu stopped by its %s)", i + 1, llama::to_string(talks[i].stopped));
  }
  std::cout << std::endl;
  if (const auto fault = executor.fault())
    std::fprintf(stderr, "first fault: %s in %s, row %d, value %lld\n",
                 to_string(static_cast<row_status>(fault->status)), to_string(static_cast<op_id>(fault->op)),
                 fault->row, static_cast<long long>(fault->value));
  // the first token of each conversation came with its prompt
  report(executor, loop, generated, first_token, all - first_token);
  return !failed;
}

}  // namespace

int main(int argc, char** argv) {
  options wanted;
  CLI::App app{
      "Answers prompts with a small Llama model, from CUDA graph (or host graph) replays of its steps."};
  app.add_option("prompt", wanted.prompts, "what to ask; several prompts are answered in one batch")
      ->required();
  app.add_option("--model", wanted.model, "GGUF file of a Llama-architecture chat model")->required();
  app.add_option("--system", wanted.system, "system prompt, instead of the model's own");
  app.add_option("--device", wanted.where, "where to run")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str();
  app.add_option("--max-tokens", wanted.max_tokens, "tokens to generate, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--context", wanted.context, "tokens that the steps are captured for")
      ->check(CLI::Range(2, 1 << 30))
      ->capture_default_str();
  app.add_option("--page-size", wanted.page_size, "tokens in a page of the KV cache, a power of two")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}))
      ->capture_default_str();
  app.add_option("--step-tokens", wanted.step_tokens, "tokens of prompt in one step, at most")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_flag("--eager", wanted.eager, "run the same steps without graphs");
  app.add_flag("--poison", wanted.poison, "fill everything undefined with wild values before each step");
  app.add_option("--lookup", wanted.lookup,
                 "draft up to so many tokens by looking the text up in itself; 0: plain decoding")
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  app.add_option("--dot", wanted.dot, "write the decode step's graph there, in Graphviz's language");
  CLI11_PARSE(app, argc, argv);
  try {
    return answer(wanted) ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "\ndriver_loop: %s\n", failure.what());
    return 1;
  }
}
