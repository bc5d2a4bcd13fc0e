#include "examples/driver_options.hpp"

#include <string>
#include <vector>

namespace stepgraph {

namespace {

void add_draft_options(CLI::App& app, driver_options& wanted) {
  auto* const lookup =
      app.add_option("--lookup", wanted.lookup, "draft up to so many tokens by looking the text up in itself")
          ->check(CLI::Range(0, 63))
          ->capture_default_str();
  app.add_option("--branches", wanted.branches, "continuations that --lookup proposes, as a tree")
      ->check(CLI::Range(1, 63))
      ->capture_default_str();
  app.add_option("--draft", wanted.draft, "file of a draft head for the model")->excludes(lookup);
  app.add_option("--draft-length", wanted.draft_length, "tokens that --draft drafts a round, at most")
      ->check(CLI::Range(1, 63))
      ->capture_default_str();
  app.add_flag("--adaptive", wanted.adaptive, "let each round's drafts follow what was measured");
  app.add_flag("--wait", wanted.wait, "wait for each round instead of launching the next while it runs");
}

void add_sampling_options(CLI::App& app, driver_options& wanted) {
  sampling_settings& sampling = wanted.sampling;
  app.add_option("--temperature", sampling.temperature, "0: greedy")
      ->check(CLI::Range(0.0f, 100.0f))
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "draw among the most probable k; 0: all")->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "draw among the most probable of this sum; 1: all")
      ->check(CLI::Range(0.0f, 1.0f))
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p,
                 "drop what is less probable than this share of the largest; 0: none")
      ->check(CLI::Range(0.0f, 1.0f))
      ->capture_default_str();
  app.add_option("--seed", sampling.seed, "of the draws: the same seed, the same text")
      ->capture_default_str();
}

void add_debugging_options(CLI::App& app, driver_options& wanted) {
  constexpr step_kind kinds[]{step_kind::decode, step_kind::extend, step_kind::target_verify,
                              step_kind::draft_extend, step_kind::draft_decode};
  std::vector<std::string> names;
  for (const step_kind kind : kinds) names.emplace_back(to_string(kind));
  app.add_flag("--eager", wanted.eager, "run the same steps without graphs");
  app.add_flag("--poison", wanted.poison, "fill everything undefined with wild values before each step");
  app.add_flag("--one-bucket", wanted.one_bucket,
               "one capture a step, the widest: every step is padded to it");
  app.add_flag("--no-programmatic", wanted.no_programmatic,
               "start each kernel only when the one before has ended");
  app.add_flag("--no-times", wanted.no_times, "leave out the nodes that read the device's clock");
  auto* const dot = app.add_option("--dot", wanted.dot, "write a step's graph there, in Graphviz's language");
  app.add_option_function<std::string>(
         "--dot-step",
         [&wanted, kinds](const std::string& name) {
           for (const step_kind kind : kinds)
             if (name == to_string(kind)) wanted.dot_step = kind;
         },
         "the step that --dot writes")
      ->check(CLI::IsMember(names))
      ->needs(dot)
      ->default_str(to_string(wanted.dot_step));
}

}  // namespace

void add_options(CLI::App& app, driver_options& wanted) {
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
  add_draft_options(app, wanted);
  add_sampling_options(app, wanted);
  add_debugging_options(app, wanted);
}

}  // namespace stepgraph
