// What speculation emits is distributed as the target alone would have it: 200,000 rows of one launch, drafts
// drawn and verified by the real kernels, chi-square against the oracle's target distribution.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/sample/sample_tokens.hpp"
#include "tests/kernels/rejection_fixture.hpp"
#include "tests/reference/philox.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

// fewer under tools that slow everything down: the bound is the same number of standard deviations
const int draws = test_small() ? 1000 : 200000;
constexpr float infinite = std::numeric_limits<float>::infinity();

using logits_table = std::vector<std::vector<float>>;  // [token before, token]

/// How node j of every row comes by its token.
struct draft_rule {
  std::int64_t parent;
  std::int64_t chosen = -1;  // this token, or negative: drawn from the draft after the parent's token
};

logits_table random_table(reference::random_integers& random, int vocab) {
  logits_table out(vocab);
  for (auto& line : out)
    for (int v = 0; v < vocab; ++v) line.push_back(static_cast<float>(random.between(-1500, 1500)) * 1e-3f);
  return out;
}

/// A draft draw for every row, after the token that `before` says.
std::vector<std::int32_t> draw_drafts(stream_ref at, const logits_table& draft,
                                      const std::vector<std::int64_t>& before, std::uint64_t seed,
                                      int position, int node, std::vector<float>* q = nullptr) {
  const int vocab = static_cast<int>(draft.size()), rows = static_cast<int>(before.size());
  std::vector<float> logits;
  std::vector<sampling_settings> settings;
  for (int row = 0; row < rows; ++row) {
    logits.insert(logits.end(), draft[before[row]].begin(), draft[before[row]].end());
    settings.push_back({.temperature = 1, .seed = seed, .request = static_cast<std::uint64_t>(row)});
  }
  const device_vector<float> lines(at, logits), probabilities(at, q ? logits.size() : 1, 0.0f);
  const device_vector<sampling_settings> rules(at, settings);
  const device_vector<std::int32_t> n(at, {rows}), base(at, rows, position - 2), tokens(at, rows, poison);
  sample_tokens(at, {.logits = lines.data(),
                     .logits_stride = vocab,
                     .rows = rows,
                     .vocab_size = vocab,
                     .live_rows = n.data(),
                     .sampling = {.settings = rules.data(), .requests = {}, .count = rows},
                     .position = base.data(),
                     .position_offset = 2,
                     .purpose = draw_purpose::draft_draw,
                     .node = node,
                     .next_token = tokens.data(),
                     .probabilities = q ? probabilities.data() : nullptr,
                     .probabilities_stride = vocab});
  if (q) *q = probabilities.get();
  return tokens.get();
}

struct measured {
  std::vector<std::int64_t> first;                // [vocab] first tokens emitted
  std::vector<std::vector<std::int64_t>> second;  // [first, vocab] second tokens, where one was emitted
  std::int64_t kept = 0;                          // drafts
};

measured speculate(std::uint64_t seed, const logits_table& target, const logits_table& draft,
                   const std::vector<draft_rule>& rules, sampling_settings settings) {
  const stream at(test_device());
  const int vocab = static_cast<int>(target.size()), nodes = static_cast<int>(rules.size()) + 1, base = 17;
  std::vector<std::int64_t> parents{-1};
  for (const draft_rule& rule : rules) parents.push_back(rule.parent);
  const auto depth = reference::depths(parents);
  std::vector<reference::draft_tree> trees(draws, {parents, std::vector<std::int64_t>(nodes, 0)});
  rejection_case in;
  in.vocab = in.draft_vocab = in.line_count = vocab;
  in.lines.assign(static_cast<std::size_t>(draws) * (nodes - 1), -1);
  std::vector<std::int64_t> before(vocab);
  for (int v = 0; v < vocab; ++v) before[v] = v;
  draw_drafts(at, draft, before, seed, 0, 0, &in.q);
  before.resize(draws);
  for (int node = 1; node < nodes; ++node) {
    const draft_rule& rule = rules[node - 1];
    for (int row = 0; row < draws; ++row) before[row] = trees[row].tokens[rule.parent];
    std::vector<std::int32_t> tokens(draws, static_cast<std::int32_t>(rule.chosen));
    if (rule.chosen < 0)
      tokens = draw_drafts(at, draft, before, seed, base + static_cast<int>(depth[node]), node);
    for (int row = 0; row < draws; ++row) {
      trees[row].tokens[node] = tokens[row];
      if (rule.chosen < 0)
        in.lines[static_cast<std::size_t>(row) * (nodes - 1) + node - 1] =
            static_cast<std::int32_t>(before[row]);
    }
  }
  in.step = make_verify_case(draws, nodes, std::move(trees), 0);
  for (int row = 0; row < draws; ++row)
    for (int node = 0; node < nodes; ++node) {
      const auto& line = target[in.step.trees[row].tokens[node]];
      in.logits.insert(in.logits.end(), line.begin(), line.end());
      in.position.push_back(base + static_cast<std::int32_t>(depth[node]));
    }
  settings.seed = seed;
  for (int row = 0; row < draws; ++row) {
    settings.request = static_cast<std::uint64_t>(row);
    in.settings.push_back(settings);
  }
  const rejection_run run(at, in);
  measured out{std::vector<std::int64_t>(vocab), std::vector(vocab, std::vector<std::int64_t>(vocab)), 0};
  const auto counts = run.result.emit_count(), tokens = run.result.emit_tokens();
  for (int row = 0; row < draws; ++row) {
    const std::size_t line = static_cast<std::size_t>(row) * nodes;
    out.kept += counts[row] - 1;
    ++out.first[tokens[line]];
    if (counts[row] > 1) ++out.second[tokens[line]][tokens[line + 1]];
  }
  return out;
}

void check_exact(const std::string& what, const logits_table& target, const logits_table& draft,
                 const std::vector<draft_rule>& rules,
                 const sampling_settings& settings = {.temperature = 1}) {
  const std::uint64_t seed = test_seed() ^ 0x9e3779b97f4a7c15u;
  const measured got = speculate(seed, target, draft, rules, settings);
  const auto p_after = [&](std::size_t token) {
    return reference::target_distribution(
               target[token], {settings.temperature, settings.top_k, settings.top_p, settings.min_p})
        .p;
  };
  const double first = reference::chi_square(got.first, p_after(0));
  const double limit = reference::chi_square_limit(p_after(0), draws);
  MESSAGE(what, ": ", static_cast<double>(got.kept) / draws, " drafts kept a row, chi-square ", first,
          ", limit ", limit);
  CHECK_MESSAGE(first < limit, what);
  for (std::size_t token = 0; token < target.size(); ++token) {
    std::int64_t seen = 0;
    for (const std::int64_t count : got.second[token]) seen += count;
    if (seen < 1000) continue;
    CHECK_MESSAGE(reference::chi_square(got.second[token], p_after(token)) <
                      reference::chi_square_limit(p_after(token), seen),
                  what, ": second token after ", token);
  }
}

/// The target with its preferences turned round.
logits_table opposite(logits_table table) {
  for (auto& line : table)
    for (float& x : line) x *= -2;
  return table;
}

/// The target, but it never says some of the tokens.
logits_table blind(logits_table table) {
  for (std::size_t i = 0; i < table.size(); ++i)
    for (std::size_t v = 0; v < table.size(); ++v)
      if ((i + v) % 2 == 0) table[i][v] = -infinite;
  return table;
}

logits_table noisy(logits_table table, reference::random_integers& random) {
  for (auto& line : table)
    for (float& x : line) x += static_cast<float>(random.between(-500, 500)) * 1e-3f;
  return table;
}

const std::vector<draft_rule> chain{{0}, {1}, {2}};
const std::vector<draft_rule> siblings{{0}, {0}, {0}, {1}, {1}, {2}};

}  // namespace

TEST_CASE("exact distribution of 200,000 draws: chains of sampled drafts, good, equal and adversarial") {
  reference::random_integers random(test_seed());
  const logits_table target = random_table(random, 7);
  check_exact("good draft", target, noisy(target, random), chain);
  check_exact("draft equal to the target", target, target, chain);
  check_exact("draft that prefers what the target avoids", target, opposite(target), chain);
  check_exact("draft blind to half the vocabulary", target, blind(target), chain);
}

TEST_CASE("exact distribution of 200,000 draws: siblings drawn independently from one q") {
  reference::random_integers random(test_seed() + 1);
  const logits_table target = random_table(random, 5);
  check_exact("good draft", target, noisy(target, random), siblings);
  check_exact("draft that prefers what the target avoids", target, opposite(target), siblings);
  check_exact("draft blind to half the vocabulary", target, blind(target), siblings);
}

TEST_CASE("exact distribution of 200,000 draws: chosen drafts, repeated ones, and beside sampled ones") {
  reference::random_integers random(test_seed() + 2);
  const logits_table target = random_table(random, 6);
  check_exact("chosen chain", target, target, {{0, 3}, {1, 2}, {2, 5}});
  check_exact("chosen siblings, one of them twice", target, target, {{0, 3}, {0, 1}, {0, 3}, {1, 4}, {2, 0}});
  check_exact("all of the vocabulary chosen", target, target,
              {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}});
  check_exact("sampled, then chosen, then sampled", target, opposite(target),
              {{0}, {0, 2}, {0}, {1}, {2, 1}});
}

TEST_CASE("exact distribution of 200,000 draws: filters leave the target zeros that a draft does not have") {
  reference::random_integers random(test_seed() + 3);
  const logits_table target = random_table(random, 8);
  check_exact("top-k", target, noisy(target, random), {{0}, {1}}, {.temperature = 0.8f, .top_k = 4});
  check_exact("top-p and siblings", target, opposite(target), {{0}, {0}, {1}},
              {.temperature = 1.3f, .top_p = 0.75f});
  check_exact("min-p", target, blind(target), {{0}, {1}}, {.temperature = 1, .min_p = 0.2f});
}

TEST_CASE("exact distribution of 200,000 draws: plain sampling is a round without drafts") {
  reference::random_integers random(test_seed() + 4);
  const logits_table target = random_table(random, 13);
  check_exact("no drafts", target, target, {});
}

TEST_CASE("same-coin: accept and residual from one number fail the chi-square that separate numbers pass") {
  // draws of the oracle, a draft drawn from q in front of p; always as many as it takes to tell the two apart
  constexpr int draws = 200000;
  const std::vector<double> p{0.1, 0.2, 0.3, 0.4}, q{0.6, 0.2, 0.1, 0.1};
  const auto statistic = [&](bool same_coin) {
    std::vector<std::int64_t> counts(4);
    for (int row = 0; row < draws; ++row) {
      const auto id = static_cast<std::uint64_t>(row);
      const auto x = reference::draw(q, reference::uniform(test_seed(), id, 6, 0, 1)).id;
      ++counts[reference::rejection_accept(
                   {{-1, 0}, {0, x}}, {p, p}, {{}, q},
                   {.seed = test_seed(), .request = id, .position = 5, .same_coin = same_coin})
                   .emitted[0]];
    }
    return reference::chi_square(counts, p);
  };
  const double limit = reference::chi_square_limit(p, draws);
  CHECK(statistic(false) < limit);
  CHECK(statistic(true) > 10 * limit);
}
