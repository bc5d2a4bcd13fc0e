#include <doctest/doctest.h>

#include <limits>

#include "graphs/error.hpp"
#include "kernels/sample/greedy_sample.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "kernels/speculate/greedy_accept.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/kernels/speculate_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

void verify(bool ok, const char* what, int row) {
  CHECK_MESSAGE(ok, what, " of row ", row);
}

/// Target argmaxes under which accept lengths of all kinds occur; some are missing where `nans` is set.
std::vector<std::vector<std::optional<std::int64_t>>> random_argmax(reference::random_integers& random,
                                                                    const verify_case& in, int vocab,
                                                                    bool nans) {
  std::vector<std::vector<std::optional<std::int64_t>>> out;
  for (int row = 0; row < in.live; ++row) {
    out.emplace_back();
    for (int node = 0; node < in.nodes(row); ++node) {
      std::optional<std::int64_t> best = random.below(vocab);
      std::vector<std::int64_t> children;
      for (int child = node + 1; child < in.nodes(row); ++child)
        if (in.trees[row].parents[child] == node) children.push_back(child);
      if (!children.empty() && !random.one_in(4))
        best = in.trees[row].tokens[children[random.below(children.size())]];
      if (nans && random.one_in(5)) best.reset();
      out.back().push_back(best);
    }
  }
  return out;
}

void compare(std::uint64_t seed, int rows, int live, int max_nodes, bool chain, bool nans) {
  CAPTURE(seed);
  const stream at(test_device());
  reference::random_integers random(seed);
  const int vocab = 6;  // few, so that siblings often share a token
  const verify_case in = random_verify_case(random, rows, live, max_nodes, vocab, chain);
  const auto argmax = random_argmax(random, in, vocab, nans);
  std::vector<std::int32_t> packed(in.tokens, wild);
  std::vector<reference::accepted> want;
  for (int row = 0; row < live; ++row) {
    for (int node = 0; node < in.nodes(row); ++node)
      packed[in.cu[row] + node] = static_cast<std::int32_t>(argmax[row][node].value_or(-1));
    want.push_back(in.nodes(row) ? reference::greedy_accept(in.trees[row], argmax[row])
                                 : reference::accepted{});
  }
  const device_verify step(at, in, !chain);
  device_vector<std::int32_t> best(at, packed);
  device_result result(at, rows, max_nodes + 2);
  fault_fixture faults(at, rows);
  greedy_accept(at,
                {.verify = step.view, .argmax = best.data(), .result = result.view, .faults = faults.sink()});
  result.compare(in, want, {}, verify);
  const auto status = faults.statuses();
  for (int row = 0; row < rows; ++row)
    CHECK(status[row] == (row < live && want[row].ended ? row_status::nan_logits : row_status::ok));
}

}  // namespace

TEST_CASE("greedy accept of random ragged chains and trees equals the definition, at every live count") {
  int i = 0;
  for (const int rows : {1, 3, 8})
    for (int live = rows; live >= 0; --live)
      for (int repeat = 0; repeat < 6; ++repeat)
        compare(test_seed() + i++, rows, live, repeat < 3 ? 6 : 24, repeat % 2 == 0, repeat >= 4);
}

TEST_CASE("shape-grid: greedy accept at widths around those of words and warps") {
  int i = 5000;
  for (const int nodes : {1, 2, 31, 32, 33, 63, 64})
    for (int repeat = 0; repeat < 4; ++repeat)
      compare(test_seed() + i++, 5, 5, nodes, repeat == 0, repeat == 3);
}

TEST_CASE("greedy accept of more rows than one team has threads") {
  compare(test_seed() + 6000, 700, 650, 5, false, true);
}

TEST_CASE("accept-zero: a row that keeps no draft emits one token and names no node -1") {
  const stream at(test_device());
  const verify_case in =
      make_verify_case(2, 4, {{{-1, 0, 1, 2}, {5, 1, 2, 3}}, {{-1, 0, 1, 2}, {5, 1, 2, 3}}}, 0);
  const device_verify step(at, in, false);
  device_vector<std::int32_t> best(at, {9, 9, 9, 9, 1, 2, 3, 4});
  device_result result(at, 2, 4);
  greedy_accept(at, {.verify = step.view, .argmax = best.data(), .result = result.view});
  CHECK(result.accept_count()[0] == 0);
  CHECK(result.emit_count()[0] == 1);
  CHECK(result.cache_advance()[0] == 1);
  CHECK(result.emit_tokens()[0] == 9);
  CHECK(result.path()[0] == 0);
  CHECK(result.accept_count()[1] == 3);
  CHECK(result.next_token()[1] == 4);
}

TEST_CASE("of siblings with one token the lowest node is kept, its subtree alone goes on") {
  const stream at(test_device());
  // 1 and 2 share a token; only 2 has the child that the target would want
  const verify_case in = make_verify_case(1, 4, {{{-1, 0, 0, 2}, {5, 7, 7, 8}}}, 0);
  const device_verify step(at, in, true);
  device_vector<std::int32_t> best(at, {7, 8, 8, 1});
  device_result result(at, 1, 4);
  greedy_accept(at, {.verify = step.view, .argmax = best.data(), .result = result.view});
  CHECK(result.accept_count()[0] == 1);
  CHECK(result.path()[1] == 1);
  CHECK(result.emit_tokens()[1] == 8);
}

TEST_CASE(
    "a NaN logit on the path ends the row, off the path it does nothing; an empty mask has its own name") {
  const stream at(test_device());
  const float nan_value = std::numeric_limits<float>::quiet_NaN();
  const int vocab = 50;
  // four rows of root, two children; the target wants child 1 everywhere
  std::vector<reference::draft_tree> trees(4, {{-1, 0, 0, 1}, {5, 7, 8, 9}});
  const verify_case in = make_verify_case(4, 4, trees, 0);
  std::vector<float> logits(16 * vocab, 0.0f);
  for (int row = 0; row < 4; ++row) {
    logits[(row * 4 + 0) * vocab + 7] = 1;
    logits[(row * 4 + 1) * vocab + 3] = 1;
  }
  logits[(0 * 4 + 2) * vocab + 33] = nan_value;  // off the path
  logits[(1 * 4 + 1) * vocab + 44] = nan_value;  // on it
  logits[(2 * 4 + 0) * vocab + 1] = nan_value;   // at the root
  std::vector<std::uint32_t> allowed(16 * 2, ~0u);
  allowed[(3 * 4 + 1) * 2] = allowed[(3 * 4 + 1) * 2 + 1] = 0;
  device_vector<float> device_logits(at, logits);
  device_vector<std::uint32_t> mask(at, allowed);
  device_vector<std::int32_t> best(at, 16, poison);
  const device_verify step(at, in, true);
  greedy_sample(at, {.logits = device_logits.data(),
                     .logits_stride = vocab,
                     .rows = 16,
                     .vocab_size = vocab,
                     .live_rows = step.live_tokens(),
                     .allowed = {.words = mask.data(), .stride = 2},
                     .next_token = best.data()});
  device_result result(at, 4, 4);
  fault_fixture faults(at, 4);
  greedy_accept(at,
                {.verify = step.view, .argmax = best.data(), .result = result.view, .faults = faults.sink()});
  CHECK(faults.statuses() == std::vector<row_status>{row_status::ok, row_status::nan_logits,
                                                     row_status::nan_logits, row_status::no_allowed_token});
  const auto emitted = result.emit_count(), tokens = result.emit_tokens(), next = result.next_token();
  CHECK(emitted[0] == 2);
  CHECK(tokens[0] == 7);
  CHECK(tokens[1] == 3);
  CHECK(emitted[1] == 1);  // the draft kept before it stays
  CHECK(tokens[4] == 7);
  CHECK(next[1] == 7);
  CHECK(emitted[2] == 0);
  CHECK(next[2] == -1);
  CHECK(emitted[3] == 1);
  CHECK(result.cache_advance()[1] == 2);
}

TEST_CASE("what an output head has ranked stands for the argmax, token by token") {
  const stream at(test_device());
  const verify_case in =
      make_verify_case(3, 3, {{{-1, 0, 1}, {5, 7, 8}}, {{-1, 0, 1}, {5, 7, 8}}, {{-1, 0}, {5, 7}}}, 0);
  const device_verify step(at, in, false);
  // row 0 by the head alone, row 1 by both in turn, row 2 ends with the head's NaN
  const device_vector<std::int32_t> best(at, {poison, poison, poison, 7, poison, 9, 7, 4, 0});
  const float nan_value = std::numeric_limits<float>::quiet_NaN();
  const device_vector<std::uint64_t> ranked(
      at, {ranked_logit(2.0f, 7), ranked_logit(-3.0f, 8), ranked_logit(0.0f, 11), 0, ranked_logit(1.0f, 8), 0,
           0, ranked_logit(nan_value, 2), 0});
  device_result result(at, 3, 3);
  fault_fixture faults(at, 3);
  const auto first_three = [](const std::vector<std::int32_t>& rows) {
    return std::vector<std::int32_t>(rows.begin(), rows.begin() + 3);
  };
  greedy_accept(at, {.verify = step.view,
                     .argmax = best.data(),
                     .ranked = ranked.data(),
                     .result = result.view,
                     .faults = faults.sink()});
  CHECK(first_three(result.accept_count()) == std::vector<std::int32_t>{2, 2, 1});
  CHECK(first_three(result.next_token()) == std::vector<std::int32_t>{11, 9, 7});
  CHECK(first_three(result.emit_count()) == std::vector<std::int32_t>{3, 3, 1});
  CHECK(faults.statuses() == std::vector<row_status>{row_status::ok, row_status::ok, row_status::nan_logits});
}

TEST_CASE("ragged-zero: rows that sit the round out change nothing for the others") {
  const stream at(test_device());
  reference::random_integers random(test_seed() + 8000);
  for (const std::vector<bool>& out : std::vector<std::vector<bool>>{{true, false, false, false},
                                                                     {false, false, false, true},
                                                                     {false, true, true, false},
                                                                     {true, true, true, true}}) {
    std::vector<reference::draft_tree> all, some;
    for (int row = 0; row < 4; ++row) {
      all.push_back(random_tree(random, 7, 3, false));
      some.push_back(out[row] ? reference::draft_tree{} : all.back());
    }
    const auto run = [&](const std::vector<reference::draft_tree>& trees) {
      const verify_case in = make_verify_case(4, 7, trees, 0);
      const device_verify step(at, in, true);
      std::vector<std::int32_t> argmax(in.tokens, 0);
      for (int row = 0; row < 4; ++row)
        for (int node = 0; node < in.nodes(row); ++node) argmax[in.cu[row] + node] = (row + 2 * node) % 3;
      device_vector<std::int32_t> best(at, argmax);
      device_result result(at, 4, 7);
      greedy_accept(at, {.verify = step.view, .argmax = best.data(), .result = result.view});
      return std::pair{result.emit_count(), result.emit_tokens()};
    };
    const auto full = run(all), ragged = run(some);
    for (int row = 0; row < 4; ++row) {
      CHECK(ragged.first[row] == (out[row] ? 0 : full.first[row]));
      for (int i = 0; i < ragged.first[row]; ++i)
        CHECK(ragged.second[row * 7 + i] == full.second[row * 7 + i]);
    }
  }
}

TEST_CASE("greedy accept refuses by name what the host can see") {
  const stream at(test_device());
  const verify_case in = make_verify_case(1, 65, {{{-1}, {5}}}, 0);
  const device_verify tree(at, in, true), chain(at, in, false);
  device_result result(at, 1, 65);
  device_vector<std::int32_t> best(at, {1});
  CHECK_THROWS_WITH_AS(greedy_accept(at, {.verify = tree.view, .argmax = best.data(), .result = result.view}),
                       doctest::Contains("at most 64 nodes"), invalid_argument);
  CHECK_THROWS_WITH_AS(greedy_accept(at, {.verify = chain.view, .argmax = nullptr, .result = result.view}),
                       doctest::Contains("argmax is null"), invalid_argument);
  result.view.stride = 64;
  CHECK_THROWS_WITH_AS(
      greedy_accept(at, {.verify = chain.view, .argmax = best.data(), .result = result.view}),
      doctest::Contains("result.stride"), invalid_argument);
  CHECK_THROWS_WITH_AS(greedy_accept(at, {}), doctest::Contains("verify.rows"), invalid_argument);
}
