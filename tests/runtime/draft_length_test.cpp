#include "runtime/draft_length.hpp"

#include <doctest/doctest.h>

using namespace stepgraph;

namespace {

/// K that the policy settles on where the k-th draft is kept with probability `kept` and a round of K drafts
/// costs `seconds(K)`: the one chosen most often of the last hundred rounds.
template <class Seconds>
int settled(double kept, Seconds seconds, int most = 8, int rows = 4) {
  draft_length_policy policy(most);
  std::vector<int> chosen(most + 1);
  double coin = 0;
  for (int round = 0; round < 600; ++round) {
    const int drafts = policy.choose(rows);
    if (round >= 500) ++chosen[drafts];
    for (int row = 0; row < rows; ++row) {
      int accepted = 0;
      while (accepted < drafts) {
        coin += 0.61803398875;  // a sequence spread evenly over [0, 1)
        if (coin >= 1) coin -= 1;
        if (coin >= kept) break;
        ++accepted;
      }
      policy.note_row(drafts, accepted);
    }
    policy.note_round(drafts, rows, seconds(drafts));
  }
  int best = 0;
  for (int k = 0; k <= most; ++k)
    if (chosen[k] > chosen[best]) best = k;
  return best;
}

}  // namespace

TEST_CASE("a draft that is always right and costs little is asked for all it can give") {
  CHECK(settled(1.0, [](int k) { return 1.0 + 0.01 * k; }) == 8);
}

TEST_CASE("drafts that are never kept, or cost as much as they bring, are not asked for") {
  CHECK(settled(0.0, [](int k) { return 1.0 + 0.1 * k; }) == 0);
  CHECK(settled(0.5, [](int k) { return 1.0 + 1.0 * k; }) == 0);
}

TEST_CASE("in between, K is where the tokens a second are most") {
  // expected tokens 1, 1.8, 2.44, 2.95, ... over 1 + 0.25 K: most at K = 2
  const int k = settled(0.8, [](int k) { return 1.0 + 0.25 * k; });
  CHECK(k >= 2);
  CHECK(k <= 4);
}

TEST_CASE("draft-length: only lengths that there are graphs for are chosen, tried neighbours included") {
  draft_length_policy policy(8, std::vector<int>{2, 5});
  std::vector<int> chosen(9);
  for (int round = 0; round < 600; ++round) {
    const int drafts = policy.choose(1);
    ++chosen[drafts];
    policy.note_row(drafts, round % 3 == 0 ? drafts : 1);
    policy.note_round(drafts, 1, 1.0 + 0.1 * drafts);
  }
  CHECK(chosen[0] + chosen[2] + chosen[5] == 600);
  CHECK(chosen[2] > 0);
  CHECK(chosen[5] > 0);
  CHECK(policy.at_most(8) == 5);
  CHECK(policy.at_most(4) == 2);
  CHECK(policy.at_most(1) == 0);
  CHECK(policy.at_most(-1) == 0);
  CHECK(draft_length_policy(3).at_most(2) == 2);
}

TEST_CASE("expected tokens follow what was kept") {
  draft_length_policy policy(3);
  for (int i = 0; i < 500; ++i) policy.note_row(3, 1);
  CHECK(policy.expected_tokens(0) == 1);
  CHECK(policy.expected_tokens(1) == doctest::Approx(2).epsilon(0.03));
  CHECK(policy.expected_tokens(3) == doctest::Approx(2).epsilon(0.05));
}
