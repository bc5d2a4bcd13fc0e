// The oracles of sampling and speculation against values worked out by hand.
#include "tests/reference/speculation.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace stepgraph::reference;
using ids = std::vector<std::int64_t>;

TEST_CASE("the target distribution of halves: filters in their order, lower ids first among equals") {
  const float ln2 = std::log(2.0f);
  const std::vector<float> logits{-2 * ln2, -ln2, -3 * ln2, -3 * ln2};  // 1/4, 1/2, 1/8, 1/8
  const auto near = [](const std::vector<double>& got, std::vector<double> want) {
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]));
  };
  near(target_distribution(logits, {.temperature = 1}).p, {0.25, 0.5, 0.125, 0.125});
  near(target_distribution(logits, {.temperature = 0}).p, {0, 1, 0, 0});
  near(target_distribution(logits, {.temperature = 0.5}).p, {4 / 22.0, 16 / 22.0, 1 / 22.0, 1 / 22.0});
  near(target_distribution(logits, {.temperature = 1, .top_k = 3}).p, {2 / 7.0, 4 / 7.0, 1 / 7.0, 0});
  near(target_distribution(logits, {.temperature = 1, .top_p = 0.7}).p, {1 / 3.0, 2 / 3.0, 0, 0});
  // of what top-k left, 4/7 do reach a half
  near(target_distribution(logits, {.temperature = 1, .top_k = 3, .top_p = 0.55}).p, {0, 1, 0, 0});
  near(target_distribution(logits, {.temperature = 1, .min_p = 0.4}).p, {1 / 3.0, 2 / 3.0, 0, 0});
  near(target_distribution(logits, {.temperature = 1}, {true, false, true, true}).p, {0.5, 0, 0.25, 0.25});
  CHECK(unfiltered_logprob(logits, {}, 1) == doctest::Approx(std::log(0.5)));
}

TEST_CASE("a draw takes the first id whose cumulative sum exceeds u, strictly") {
  const std::vector<double> weights{0, 0.25, 0, 0.5, 0.25, 0};
  CHECK(draw(weights, 0.0).id == 1);
  CHECK(draw(weights, 0.2499).id == 1);
  CHECK(draw(weights, 0.25).id == 3);
  CHECK(draw(weights, 0.75).id == 4);
  CHECK(draw(weights, 0.999999).id == 4);
}

TEST_CASE("depths, ancestors, the greedy walk and the committed order of a small tree") {
  const draft_tree tree{{-1, 0, 0, 1, 2, 2}, {9, 5, 6, 7, 7, 8}};
  CHECK(depths(tree.parents) == ids{0, 1, 1, 2, 2, 2});
  CHECK(ancestor_sets(tree.parents) == std::vector<std::uint64_t>{1, 3, 5, 11, 21, 37});
  const accepted walk = greedy_accept(tree, {6, 0, 8, 0, 0, 3});
  CHECK(walk.path == ids{0, 2, 5});
  CHECK(walk.emitted == ids{6, 8, 3});
  CHECK(committed_order(6, walk.path) == ids{0, 2, 5, 1, 3, 4});
  const accepted broken = greedy_accept(tree, {6, 0, std::nullopt, 0, 0, 3});
  CHECK(broken.ended);
  CHECK(broken.emitted == ids{6});
  CHECK(greedy_accept({{-1, 0}, {9, 5}}, {6, 0}).emitted == ids{6});
}

TEST_CASE(
    "rejection at the extremes: what p is sure of stays, what it excludes goes, the rest is the residual") {
  const coins from{.seed = 1, .request = 2, .position = 3};
  const draft_tree sure{{-1, 0}, {0, 1}};
  CHECK(rejection_accept(sure, {{0, 1, 0}, {0, 0, 1}}, {{}, {}}, from).emitted == ids{1, 2});
  CHECK(rejection_accept(sure, {{1, 0, 0}, {0, 0, 1}}, {{}, {}}, from).emitted == ids{0});
  // p has a third more than q at 0 alone, so a refusal leaves 0
  for (std::uint64_t request = 0; request < 50; ++request) {
    const auto out =
        rejection_accept(sure, {{0.5, 0.1, 0.4}, {0, 0, 1}}, {{}, {0, 0.6, 0.4}}, {.request = request});
    CHECK((out.emitted == ids{0} || out.emitted == ids{1, 2}));
  }
}

TEST_CASE("the first end of a text counts") {
  const finish_input in{.emitted = {4, 5, 6}, .end_ids = {6, 5}, .base = 10, .max_context = 20, .budget = 9};
  CHECK(finish(in).kept == 2);
  CHECK(finish(in).why == ending::end_of_sequence);
  finish_input tight = in;
  tight.max_context = 11;
  CHECK(finish(tight).kept == 1);
  CHECK(finish(tight).why == ending::context_limit);
  tight.budget = 1;
  CHECK(finish(tight).why == ending::token_budget);
}

TEST_CASE("chi-square passes what it should and finds what it should not") {
  CHECK(chi_square({500, 300, 200}, {0.5, 0.3, 0.2}) == doctest::Approx(0.0));
  CHECK(chi_square({510, 290, 200}, {0.5, 0.3, 0.2}) == doctest::Approx(0.2 + 1 / 3.0));
  CHECK(std::isinf(chi_square({10, 1}, {1, 0})));
  CHECK(chi_square({5300, 4700}, {0.5, 0.5}) > chi_square_limit({0.5, 0.5}, 10000));
}
