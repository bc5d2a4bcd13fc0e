#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/kernels/rejection_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

void verify(bool ok, const char* what, int row) {
  CHECK_MESSAGE(ok, what, " of row ", row);
}

std::vector<double> q_of(const rejection_case& in, int row, int node) {
  const std::int32_t line = in.lines[static_cast<std::size_t>(row) * (in.step.max_nodes - 1) + node - 1];
  std::vector<double> out;
  if (line < 0 || line >= in.line_count) return out;
  for (int v = 0; v < in.vocab; ++v) {
    const int mine = in.draft_ids.empty() ? v : in.draft_ids[v];
    out.push_back(mine < 0 ? 0.0 : in.q[static_cast<std::size_t>(line) * in.draft_vocab + mine]);
  }
  return out;
}

std::vector<float> logits_of(const rejection_case& in, int token) {
  const auto begin = in.logits.begin() + static_cast<std::size_t>(token) * in.vocab;
  return {begin, begin + in.vocab};
}

std::vector<bool> allowed_of(const rejection_case& in, int token) {
  std::vector<bool> out;
  for (int v = 0; !in.allowed.empty() && v < in.vocab; ++v)
    out.push_back(in.allowed[static_cast<std::size_t>(token) * ((in.vocab + 31) / 32) + v / 32] >> (v % 32) &
                  1);
  return out;
}

/// A q that is none, past the drawn token: its rows end where the oracle has no opinion.
bool bad_beside(const rejection_case& in, int row) {
  for (int node = 1; node < in.step.nodes(row); ++node) {
    const auto q = q_of(in, row, node);
    for (std::size_t v = 0; v < q.size(); ++v)
      if (!(q[v] >= 0) && static_cast<std::int64_t>(v) != in.step.trees[row].tokens[node]) return true;
  }
  return false;
}

void compare(const rejection_case& in, bool check_faults = true) {
  const stream at(test_device());
  const rejection_run run(at, in);
  const auto logprobs = run.logprobs(), unfiltered = run.unfiltered_logprobs();
  std::vector<reference::accepted> want(in.step.live);
  std::vector<bool> unsure(in.step.live);
  for (int row = 0; row < in.step.live; ++row) {
    if (in.step.nodes(row) == 0) continue;
    std::vector<std::vector<double>> p, q;
    double margin = 1;
    const sampling_settings& s = in.settings[row];
    for (int node = 0; node < in.step.nodes(row); ++node) {
      const auto target = reference::target_distribution(logits_of(in, in.step.cu[row] + node),
                                                         {s.temperature, s.top_k, s.top_p, s.min_p},
                                                         allowed_of(in, in.step.cu[row] + node));
      p.push_back(target.p);
      q.push_back(node == 0 ? std::vector<double>{} : q_of(in, row, node));
      margin = std::min(margin, target.margin);
    }
    want[row] = reference::rejection_accept(
        in.step.trees[row], p, q,
        {.seed = s.seed, .request = s.request, .position = in.position[in.step.cu[row]]});
    // coins that hang on rounding may fall either way; of a one-hot p nothing hangs on a coin
    const bool greedy = s.temperature == 0 || s.top_k == 1;
    unsure[row] = bad_beside(in, row) || (!greedy && std::min(margin, want[row].margin) < 1e-5);
    if (unsure[row]) continue;
    for (std::size_t i = 0; i < want[row].emitted.size(); ++i) {
      const std::int64_t node = want[row].path[std::min(i, want[row].path.size() - 1)],
                         id = want[row].emitted[i];
      const int token = in.step.cu[row] + static_cast<int>(node);
      const std::size_t place = static_cast<std::size_t>(row) * in.step.max_nodes + i;
      CHECK(logprobs[place] == doctest::Approx(std::log(p[node][id])).epsilon(1e-4));
      CHECK(unfiltered[place] ==
            doctest::Approx(reference::unfiltered_logprob(logits_of(in, token), allowed_of(in, token), id))
                .epsilon(1e-4));
    }
  }
  run.result.compare(in.step, want, unsure, verify);
  const auto status = run.faults.statuses();
  for (int row = 0; check_faults && row < in.step.rows; ++row)
    if (row >= in.step.live || !unsure[row]) CHECK(status[row] == row_status::ok);
}

}  // namespace

TEST_CASE(
    "rejection accept of random ragged chains and trees equals the definition token for token, at every live "
    "count") {
  int i = 0;
  for (int live = 6; live >= 0; --live)
    for (int repeat = 0; repeat < 12; repeat += test_small() ? 5 : 1) {
      CAPTURE(i);
      compare(random_rejection(test_seed() + i++, 6, live, repeat < 6 ? 5 : 12, 2 + 3 * (repeat % 4),
                               repeat % 2 == 0, repeat % 3 == 0, repeat % 4 == 1));
    }
}

TEST_CASE(
    "shape-grid: rejection accept at widths around those of words and warps, and vocabularies past a block") {
  int i = 3000;
  for (const int nodes : {2, 31, 32, 33, 63, 64})
    compare(random_rejection(test_seed() + i++, 4, 4, nodes, 9, false, false));
  for (const int vocab : {33, 513, 5003})
    compare(random_rejection(test_seed() + i++, 4, 4, 6, vocab, false, true));
}

TEST_CASE("greedy rows in a sampled batch emit what greedy accept emits, whatever q says") {
  const stream at(test_device());
  for (int i = 0; i < test_rounds(20); ++i) {
    rejection_case in = random_rejection(test_seed() + 4000 + i, 5, 5, 8, 5, false, false);
    for (auto& s : in.settings) s.temperature = 0;
    const rejection_run run(at, in);
    std::vector<reference::accepted> want(5);
    for (int row = 0; row < 5; ++row) {
      std::vector<std::optional<std::int64_t>> argmax;
      for (int node = 0; node < in.step.nodes(row); ++node) {
        const auto logits = logits_of(in, in.step.cu[row] + node);
        argmax.emplace_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
      }
      if (!argmax.empty()) want[row] = reference::greedy_accept(in.step.trees[row], argmax);
    }
    run.result.compare(in.step, want, {}, verify);
  }
}

TEST_CASE("same seed, same text: neither the batch, the bucket, the place in it nor replays change a row") {
  const stream at(test_device());
  for (const int vocab : {40, 5003}) {
    const rejection_case in = random_rejection(test_seed() + 5000, 7, 7, 9, vocab, false, false);
    const rejection_run all(at, in), again(at, in);
    const auto counts = all.result.emit_count(), tokens = all.result.emit_tokens();
    CHECK(again.result.emit_tokens() == tokens);
    for (int row = 0; row < 7; row += test_small() ? 3 : 1) {
      // the row alone, second of a bucket of four, the others sitting out
      std::vector<reference::draft_tree> trees(3);
      trees[1] = in.step.trees[row];
      rejection_case one = in;
      one.step = make_verify_case(4, 9, trees, 3);
      one.logits.assign(static_cast<std::size_t>(one.step.tokens) * in.vocab, nan_value);
      one.position.assign(one.step.tokens, 0);
      const int first = in.step.cu[row], nodes = in.step.nodes(row);
      std::copy_n(in.logits.begin() + static_cast<std::size_t>(first) * in.vocab,
                  static_cast<std::size_t>(nodes) * in.vocab, one.logits.begin());
      std::copy_n(in.position.begin() + first, nodes, one.position.begin());
      one.settings.assign(4, in.settings[row]);
      one.lines.assign(4 * 8, -1);
      std::copy_n(in.lines.begin() + row * 8, 8, one.lines.begin() + 8);
      const rejection_run alone(at, one);
      CHECK(alone.result.emit_count()[1] == counts[row]);
      const auto got = alone.result.emit_tokens();
      for (int i = 0; i < counts[row]; ++i) CHECK(got[9 + i] == tokens[row * 9 + i]);
    }
  }
}

TEST_CASE("pad-shrink: a captured accept replayed with fewer and fewer rows equals a fresh run each time") {
  const stream at(test_device());
  constexpr int rows = 8, nodes = 6, vocab = 20, tokens = rows * nodes + 5, lines = rows * nodes;
  const auto step_of = [](int live) {
    rejection_case in = random_rejection(test_seed() + 6000 + live, rows, live, nodes, vocab, false, false);
    in.step.tokens = tokens;
    in.logits.resize(static_cast<std::size_t>(tokens) * vocab, nan_value);
    in.position.resize(tokens, wild);
    in.q.resize(static_cast<std::size_t>(lines) * vocab, nan_value);
    in.line_count = lines;
    return in;
  };
  rejection_run captured(at, step_of(rows), nullptr);
  const graph made = capture(at, [&](stream_ref s) { captured.enqueue(s); });
  CHECK(made.node_count() == 2);
  const graph_exec exec = made.instantiate();
  for (int live = rows; live >= 0; --live) {
    const rejection_case in = step_of(live);
    captured.set(in);
    exec.launch(at);
    at.synchronize();
    const rejection_run fresh(at, in);
    CHECK(captured.result.accept_count() == fresh.result.accept_count());
    CHECK(captured.result.next_token() == fresh.result.next_token());
    const auto counts = captured.result.emit_count(), got = captured.result.emit_tokens(),
               want = fresh.result.emit_tokens();
    CHECK(counts == fresh.result.emit_count());
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < counts[row]; ++i) CHECK(got[row * nodes + i] == want[row * nodes + i]);
  }
}

TEST_CASE(
    "a NaN logit on the path, an empty mask or a q that is none ends its row alone, with its name and no "
    "bonus") {
  const stream at(test_device());
  rejection_case in;
  in.vocab = in.draft_vocab = 4;
  in.tree = false;
  const int rows = 6;
  // every target is sure of token 1; drafts are 1, 1
  in.step = make_verify_case(rows, 3, std::vector<reference::draft_tree>(rows, {{-1, 0, 1}, {0, 1, 1}}), 0);
  in.logits.assign(in.step.tokens * 4, 0.0f);
  for (int token = 0; token < in.step.tokens; ++token) in.logits[token * 4 + 1] = 200;
  in.position.assign(in.step.tokens, 3);
  in.settings.assign(rows, {.temperature = 1, .seed = 5, .request = 6});
  in.lines.assign(rows * 2, -1);
  in.q = {0, nan_value, 0, 1,   // line 0: NaN where p is positive, sure of 3
          0, -1,        0, 1};  // line 1: negative there
  in.line_count = 2;
  in.allowed.assign(in.step.tokens, ~0u);
  in.logits[(1 * 3 + 1) * 4 + 2] = nan_value;  // row 1: at the first draft
  in.logits[2 * 3 * 4] = nan_value;            // row 2: at the root
  in.allowed[3 * 3 + 2] = 0xf0;  // row 3: after both drafts nothing of the vocabulary is allowed
  for (const int row : {4, 5}) {
    in.step.trees[row].tokens[1] = 3;  // p(3) is 0: refused, and q is looked at
    in.lines[row * 2] = row - 4;
  }
  const rejection_run run(at, in);
  CHECK(run.faults.statuses() == std::vector<row_status>{row_status::ok, row_status::nan_logits,
                                                         row_status::nan_logits, row_status::no_allowed_token,
                                                         row_status::nan_probabilities,
                                                         row_status::nan_probabilities});
  CHECK(run.result.emit_count() ==
        std::vector<std::int32_t>{3, 1, 0, 2, 0, 0, poison, poison, poison, poison});
  CHECK(run.result.accept_count() ==
        std::vector<std::int32_t>{2, 1, 0, 2, 0, 0, poison, poison, poison, poison});
  CHECK(run.result.next_token() ==
        std::vector<std::int32_t>{1, 1, -1, 1, -1, -1, poison, poison, poison, poison});
}

TEST_CASE("a sampled draft whose q(x) is NaN, not positive or over 1 is treated as chosen") {
  const stream at(test_device());
  constexpr int rows = 400;
  rejection_case in;
  in.vocab = in.draft_vocab = 4;
  in.tree = false;
  in.step = make_verify_case(rows, 2, std::vector<reference::draft_tree>(rows, {{-1, 0}, {0, 2}}), 0);
  in.logits.assign(in.step.tokens * 4, 0.0f);
  in.position.assign(in.step.tokens, 3);
  for (int row = 0; row < rows; ++row)
    in.settings.push_back(
        {.temperature = 1, .seed = test_seed(), .request = static_cast<std::uint64_t>(row)});
  in.line_count = 1;
  const auto emitted = [&](std::int32_t line, float q) {
    in.lines.assign(rows, line);
    in.q = {0.3f, 0.1f, q, 0.2f};
    return rejection_run(at, in).result.emit_tokens();
  };
  const auto chosen = emitted(-1, 0.4f);
  for (const float q : {nan_value, 0.0f, -0.25f, 1.5f, std::numeric_limits<float>::infinity()})
    CHECK(emitted(0, q) == chosen);
  CHECK(emitted(0, 0.4f) != chosen);
}

TEST_CASE("rejection accept refuses by name what the host can see") {
  const stream at(test_device());
  CHECK_THROWS_WITH_AS(rejection_accept(at, {}), doctest::Contains("verify.rows"), invalid_argument);
  rejection_case in = random_rejection(test_seed() + 9000, 2, 2, 4, 5, true, false);
  in.vocab = 6;  // draft and target of different vocabularies, and no map
  in.logits.resize(in.step.tokens * 6);
  CHECK_THROWS_WITH_AS(rejection_run(at, in), doctest::Contains("draft.draft_ids is null"), invalid_argument);
}
