#include "bench/replay/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>

#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

std::string names(const auto& all, const auto& name) {
  std::string text;
  for (const auto& each : all) text += std::string(text.empty() ? "" : ", ") + name(each);
  return text;
}

replay_step step_named(const std::string& name) {
  static const std::vector all{replay_step::decode, replay_step::target_verify, replay_step::draft_extend,
                               replay_step::round};
  for (const replay_step each : all)
    if (name == to_string(each)) return each;
  throw invalid_argument(message("--step: no step is called '", name, "'; known are ",
                                 names(all, [](replay_step s) { return to_string(s); })));
}

const replay_policy& policy_named(const std::string& name) {
  for (const replay_policy& each : replay_policies())
    if (name == each.name) return each;
  throw invalid_argument(message("--policy: no guard policy is called '", name, "'; known are ",
                                 names(replay_policies(), [](const replay_policy& p) { return p.name; })));
}

accept_rule rule_of(const replay_options& wanted) {
  if (!wanted.accept_weights.empty()) return accept_rule::weights(wanted.accept_weights, wanted.drafts);
  if (wanted.accept_rate >= 0) return accept_rule::rate(wanted.accept_rate, wanted.drafts);
  return accept_rule::fixed(wanted.accept >= 0 ? wanted.accept : wanted.drafts / 2, wanted.drafts);
}

}  // namespace

void add_options(CLI::App& app, replay_options& w) {
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--model", w.models,
                 "model shapes: " + names(model_shapes(), [](const auto& s) { return s.name; }))
      ->delimiter(',');
  app.add_option("--step", w.steps, "decode, target-verify, draft-extend, round")->delimiter(',');
  app.add_option(
         "--policy", w.policies,
         "guard policies: " + names(replay_policies(), [](const auto& p) { return std::string(p.name); }))
      ->delimiter(',');
  app.add_option("--batch", w.batches, "rows")->delimiter(',')->check(CLI::Range(1, 4096));
  app.add_option("--live", w.lives, "tokens of a row, the step's own included")
      ->delimiter(',')
      ->check(positive);
  app.add_option("--width", w.widths, "tokens that the step is captured for")
      ->delimiter(',')
      ->check(positive);
  app.add_option("--drafts", w.drafts, "drafts of a row in a verify step, K")
      ->check(CLI::Range(1, 63))
      ->capture_default_str();
  auto* const fixed = app.add_option("--accept", w.accept,
                                     "drafts that a simulated accept keeps; half of them if nothing is said")
                          ->check(CLI::Range(0, 63));
  auto* const rate = app.add_option("--accept-rate", w.accept_rate, "probability that a draft is kept")
                         ->check(CLI::Range(0.0, 1.0))
                         ->excludes(fixed);
  app.add_option("--accept-weights", w.accept_weights, "weights of 0, 1, ... drafts kept")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->excludes(fixed)
      ->excludes(rate);
  app.add_flag("--ragged", w.ragged, "rows verify 1 to K + 1 tokens, not all K + 1");
  app.add_option("--page", w.page_size, "tokens in a page of the KV cache")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}))
      ->capture_default_str();
  app.add_option("--device", w.where, "where to run")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str();
  app.add_option("--samples", w.batches_timed, "batches of launches timed in one repetition")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--repetitions", w.repetitions, "repetitions of each case")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--seed", w.seed, "of weights, tokens, pages and accepts")->capture_default_str();
  app.add_option("--json", w.json, "file to write, or - for standard output");
  app.add_option("--commit", w.commit, "commit that was built");
  app.add_flag("--list", w.list, "print the cases and stop");
}

std::vector<replay_case> cases_of(const replay_options& wanted) {
  const accept_rule rule = rule_of(wanted);
  std::vector<replay_case> cases;
  for (const std::string& model : wanted.models)
    for (const std::string& step : wanted.steps)
      for (const int batch : wanted.batches)
        for (const std::int64_t live : wanted.lives)
          for (const std::int64_t width : wanted.widths)
            for (const std::string& policy : wanted.policies) {
              cases.push_back({.model = model_named(model),
                               .step = step_named(step),
                               .policy = policy_named(policy),
                               .batch = batch,
                               .live = live,
                               .width = width,
                               .page_size = wanted.page_size,
                               .drafts = wanted.drafts,
                               .accept = rule,
                               .ragged = wanted.ragged});
              check(cases.back());
            }
  return cases;
}

}  // namespace stepgraph::bench
