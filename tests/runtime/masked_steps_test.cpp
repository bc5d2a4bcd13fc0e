// Masks of allowed tokens and logprobs of the emitted ones, as a body asks for them, through every kind of target step.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/reference/sampling.hpp"
#include "tests/runtime/told_steps.hpp"

using namespace stepgraph;

namespace {

using text = told_steps::text;

struct kind_of_step {
  std::string name;
  step_kind kind;
  int variant;
  bool is_sampled() const { return variant & told_steps::sampled; }
  bool is_tree() const { return variant & told_steps::trees; }
};

const kind_of_step all_kinds[] = {
    {"greedy decode", step_kind::decode, told_steps::greedy},
    {"sampled decode", step_kind::decode, told_steps::sampled},
    {"greedy chain", step_kind::target_verify, told_steps::greedy},
    {"sampled chain", step_kind::target_verify, told_steps::sampled},
    {"greedy tree", step_kind::target_verify, told_steps::trees},
    {"sampled tree", step_kind::target_verify, told_steps::trees + told_steps::sampled}};

/// Requests with a prompt behind them, and what they have said so far.
struct talk {
  request_id request;
  text history;
  sampling_settings sampling;
};

reference::target target_after(const told_steps& told, const text& history, const sampling_settings& s,
                               bool sampled) {
  const reference::sampling_rule rule =
      sampled ? reference::sampling_rule{s.temperature, s.top_k, s.top_p, s.min_p}
              : reference::sampling_rule{};
  reference::target target =
      reference::target_distribution(told.logits_after(history), rule, told.allowed_after(history));
  if (!told.best_after(history)) target.p.clear();
  return target;
}

bool is_allowed(const told_steps& told, const text& history, std::int32_t token) {
  const auto allowed = told.allowed_after(history);
  return allowed.empty() || allowed[token];
}

/// What a row must come to: of a plain step the tree is its root.
reference::accepted wanted(const told_steps& told, const told_steps::row& row, const sampling_settings& s,
                           bool sampled) {
  std::vector<std::vector<double>> p;
  std::vector<std::optional<std::int64_t>> argmax;
  double margin = 1;
  for (std::size_t node = 0; node < row.tree.tokens.size(); ++node) {
    const text history = told_steps::after_node(row, static_cast<std::int64_t>(node));
    const reference::target target = target_after(told, history, s, sampled);
    p.push_back(target.p);
    margin = std::min(margin, target.margin);
    argmax.push_back(told.best_after(history));
  }
  if (!sampled || s.temperature == 0) return reference::greedy_accept(row.tree, argmax);
  reference::accepted out = reference::rejection_accept(
      row.tree, p, std::vector<std::vector<double>>(p.size()),
      {.seed = s.seed, .request = s.request, .position = static_cast<std::int64_t>(row.history->size()) - 1});
  out.margin = std::min(out.margin, margin);
  return out;
}

/// Drafts behind the root: what the target would say, now and then something else, masked tokens among it.
reference::draft_tree some_tree(reference::random_integers& random, const told_steps& told, int vocab,
                                const text& history, int drafts, bool chain) {
  told_steps::row row{0, const_cast<text*>(&history), {{-1}, {history.back()}}};
  for (int node = 1; node <= drafts; ++node) {
    const std::int64_t parent = chain || random.one_in(2) ? node - 1 : random.below(node);
    const auto best = told.best_after(told_steps::after_node(row, parent));
    row.tree.parents.push_back(parent);
    row.tree.tokens.push_back(best && !random.one_in(4) ? *best : random.below(vocab));
  }
  return row.tree;
}

/// Compares a step with what it must come to, and lets the texts go on by what it emitted. Returns drafts kept.
int check_step(const told_steps& told, const kind_of_step& step, const told_steps::outcome& got,
               const std::vector<told_steps::row>& rows, std::vector<talk>& talks) {
  const bool plain = step.kind != step_kind::target_verify;
  std::vector<bool> written(got.logprobs.size(), false);
  int kept = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    CAPTURE(r);
    const sampling_settings& s = talks[r].sampling;
    if (plain) written[r] = true;  // every live row's, 0 where nothing came
    if (rows[r].tree.tokens.empty()) {
      CHECK(got.emitted[r].empty());
      if (plain) CHECK((got.logprobs[r] == 0.0f && got.unfiltered[r] == 0.0f));
      continue;
    }
    const reference::accepted want = wanted(told, rows[r], s, step.is_sampled());
    const bool unsure = step.is_sampled() && s.temperature > 0 && want.margin < 1e-5;
    const text tokens(want.emitted.begin(), want.emitted.end());
    if (!unsure) {
      CHECK(got.emitted[r] == tokens);
      CHECK(got.results[r].status ==
            static_cast<int>(want.ended ? row_status::no_allowed_token : row_status::ok));
      if (plain && tokens.empty()) CHECK((got.logprobs[r] == 0.0f && got.unfiltered[r] == 0.0f));
    }
    text history = *rows[r].history;
    for (std::size_t i = 0; i < got.emitted[r].size(); ++i) {
      const std::int32_t token = got.emitted[r][i];
      const std::size_t place = r * got.stride + i;
      CHECK(is_allowed(told, history, token));
      written[place] = true;
      const auto p = target_after(told, history, s, step.is_sampled()).p;
      if (!unsure) {
        CHECK(got.logprobs[place] == doctest::Approx(std::log(p[token])).epsilon(1e-4));
        CHECK(got.unfiltered[place] ==
              doctest::Approx(reference::unfiltered_logprob(told.logits_after(history),
                                                            told.allowed_after(history), token))
                  .epsilon(1e-4));
      }
      history.push_back(token);
      kept += i > 0;
    }
    // a row that has failed stays where it was
    if (got.results[r].status == 0) talks[r].history = history;
  }
  for (std::size_t place = 0; place < written.size(); ++place)
    if (!written[place])
      CHECK((got.logprobs[place] == told_steps::unwritten && got.unfiltered[place] == told_steps::unwritten));
  return kept;
}

std::vector<told_steps::row> rows_of(std::vector<talk>& talks, int live) {
  std::vector<told_steps::row> rows;
  for (int r = 0; r < live; ++r)
    rows.push_back({talks[r].request, &talks[r].history, {{-1}, {talks[r].history.back()}}});
  return rows;
}

/// Opens `count` texts, of a greedy variant greedy ones, and gives each its prompt by one extend step, which says their first token.
std::vector<talk> open_talks(told_steps& told, int count, reference::random_integers& random, int vocab,
                             int variant) {
  std::vector<talk> talks;
  for (int r = 0; r < count; ++r) {
    const float temperatures[] = {0.0f, 0.7f, 1.0f, 1.6f};
    const sampling_settings sampling{
        .temperature = temperatures[variant == told_steps::greedy ? 0 : random.below(4)],
        .top_k = random.one_in(3) ? 5 : 0,
        .top_p = random.one_in(3) ? 0.8f : 1.0f,
        .min_p = random.one_in(4) ? 0.1f : 0.0f,
        .seed = static_cast<std::uint64_t>(random.below(INT64_MAX)),
        .request = std::uint64_t(r) + 1};
    talks.push_back(
        {told.executor.open({.sampling = sampling}), {r}, sampling});  // no two texts are the same
    for (auto i = random.between(0, 2); i > 0; --i)
      talks.back().history.push_back(static_cast<std::int32_t>(random.below(vocab)));
  }
  const auto rows = rows_of(talks, count);
  const kind_of_step extend{"extend", step_kind::extend, variant};
  check_step(told, extend, told.run(step_kind::extend, variant, rows), rows, talks);
  return talks;
}

}  // namespace

TEST_CASE(
    "masks and logprobs: every kind of step emits what the definitions say and no masked token, one logprob "
    "a token, "
    "on ragged rows, dead rows untouched") {
  for (const int vocab : {37, 4099}) {
    told_steps told({.rows = 4, .drafts = 4, .vocab = vocab, .poison = vocab == 37});
    told.executor.capture();
    reference::random_integers random(test_seed());
    std::vector<talk> talks = open_talks(told, 4, random, vocab, told_steps::sampled);
    int kept = 0;
    for (int round = 0; round < (test_small() ? 6 : vocab > 1000 ? 24 : 90); ++round) {
      const kind_of_step& step = all_kinds[round % 6];
      CAPTURE(step.name);
      CAPTURE(round);
      auto rows = rows_of(talks, static_cast<int>(random.between(1, 4)));
      for (auto& row : rows) {
        if (random.one_in(5))
          row.tree = {};
        else if (step.kind == step_kind::target_verify)
          row.tree = some_tree(random, told, vocab, *row.history, static_cast<int>(random.between(0, 4)),
                               !step.is_tree());
      }
      kept += check_step(told, step, told.run(step.kind, step.variant, rows, random.one_in(4)), rows, talks);
    }
    CHECK((kept > 0 || test_small()));
    CHECK_FALSE(told.executor.fault());
    CHECK_FALSE((vocab == 37 && told.executor.overrun()));
  }
}

TEST_CASE(
    "lossless: greedy masked text with drafts, chains and trees, equals masked plain decoding token for "
    "token") {
  const int length = test_small() ? 8 : 40, vocab = 37;
  told_steps told({.rows = 3, .drafts = 5, .vocab = vocab});
  told.executor.capture();
  for (const int variant : {told_steps::greedy, told_steps::trees}) {
    reference::random_integers random(test_seed() + 5);
    std::vector<talk> talks = open_talks(told, 3, random, vocab, told_steps::greedy);
    std::vector<text> plain;
    int masked = 0;
    for (const talk& each : talks) {
      plain.push_back(each.history);
      while (std::ssize(plain.back()) < length + 12) {
        const auto line = told.logits_after(plain.back());
        masked += !is_allowed(told, plain.back(),
                              static_cast<std::int32_t>(std::ranges::max_element(line) - line.begin()));
        plain.back().push_back(static_cast<std::int32_t>(*told.best_after(plain.back())));
      }
    }
    CHECK(masked > length / 4);  // the masks matter
    const auto shortest = [&] {
      return std::ranges::min(talks, {}, [](const talk& each) { return each.history.size(); }).history.size();
    };
    int drafted = 0, rounds = 0;
    for (; std::ssize(talks[0].history) < length || static_cast<int>(shortest()) < length; ++rounds) {
      auto rows = rows_of(talks, 3);
      for (auto& row : rows)
        row.tree = std::ssize(*row.history) >= length
                       ? reference::draft_tree{}
                       : some_tree(random, told, vocab, *row.history, static_cast<int>(random.between(0, 5)),
                                   variant == told_steps::greedy);
      const auto got = told.run(step_kind::target_verify, variant, rows);
      for (int r = 0; r < 3; ++r) {
        drafted += std::max(0, static_cast<int>(got.emitted[r].size()) - 1);
        talks[r].history.insert(talks[r].history.end(), got.emitted[r].begin(), got.emitted[r].end());
      }
      REQUIRE(rounds < 4 * length);
    }
    CHECK(drafted > 0);
    for (int r = 0; r < 3; ++r)
      CHECK(std::ranges::equal(talks[r].history, std::span(plain[r]).first(talks[r].history.size())));
    for (const talk& each : talks) told.executor.close(each.request);
  }
}

TEST_CASE("a mask that allows nothing ends its row by name, after the drafts kept before, and no other row") {
  told_steps told({.rows = 3, .drafts = 3});
  told.executor.capture();
  reference::random_integers random(test_seed() + 9);
  for (const kind_of_step& step : all_kinds) {
    CAPTURE(step.name);
    told.nothing_after = {};
    std::vector<talk> talks = open_talks(told, 3, random, 37, told_steps::greedy);
    auto rows = rows_of(talks, 3);
    text path = talks[1].history;
    if (step.kind == step_kind::target_verify)
      for (int node = 1; node <= 3; ++node) {
        const auto best = told.best_after(path);
        rows[1].tree.parents.push_back(node - 1);
        rows[1].tree.tokens.push_back(best.value_or(0));
        path.push_back(static_cast<std::int32_t>(best.value_or(0)));
        if (node == 2) told.nothing_after = path;
      }
    else
      told.nothing_after = talks[1].history;
    const std::size_t before = talks[1].history.size();
    told.executor.reset_fault();
    const auto got = told.run(step.kind, step.variant, rows);
    check_step(told, step, got, rows, talks);
    CHECK(got.results[1].status == static_cast<int>(row_status::no_allowed_token));
    CHECK(got.emitted[1].size() == (step.kind == step_kind::target_verify ? 2u : 0u));
    CHECK(talks[1].history.size() == before);
    CHECK(got.results[0].status == 0);
    CHECK(got.results[2].status == 0);
    const auto fault = told.executor.fault();
    REQUIRE(fault);
    CHECK(fault->row == 1);
    CHECK(fault->status == static_cast<int>(row_status::no_allowed_token));
    for (const talk& each : talks) told.executor.close(each.request);
  }
}
