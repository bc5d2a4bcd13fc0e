#include "runtime/prompt_lookup.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stepgraph;

namespace {

std::vector<std::int32_t> lookup(const std::vector<std::int32_t>& history, int most) {
  std::vector<std::int32_t> drafts(most, -1);
  drafts.resize(prompt_lookup(history, drafts));
  return drafts;
}

}  // namespace

TEST_CASE("prompt look-up proposes what followed the latest earlier place of the longest suffix") {
  using tokens = std::vector<std::int32_t>;
  CHECK(lookup({}, 4).empty());
  CHECK(lookup({1}, 4).empty());
  CHECK(lookup({1, 2, 3}, 4).empty());
  CHECK(lookup({1, 2, 3, 9, 1, 2, 3}, 2) == tokens{9, 1});
  CHECK(lookup({5, 7, 5, 8, 5}, 4) == tokens{8, 5});
  // three tokens agree at the first place, one at the second: the longer wins
  CHECK(lookup({1, 2, 3, 4, 9, 3, 8, 1, 2, 3}, 1) == tokens{4});
  CHECK(lookup({6, 6, 6}, 8) == tokens{6});
}

TEST_CASE("look-up as a tree proposes continuations that differ in their first token, the latest first") {
  const std::vector<std::int32_t> history{7, 1, 2, 7, 3, 4, 7, 1, 9, 7};
  std::vector<std::int32_t> drafts(6), parents(6);
  REQUIRE(prompt_lookup_tree(history, drafts, parents, 2) == 6);
  CHECK(drafts == std::vector<std::int32_t>{1, 9, 7, 3, 4, 7});
  CHECK(parents == std::vector<std::int32_t>{0, 1, 2, 0, 4, 5});
  CHECK(prompt_lookup_tree(std::vector<std::int32_t>{1, 2, 3}, drafts, parents, 2) == 0);
}

TEST_CASE(
    "look-up as a tree uses all drafts: no more branches than drafts, what is left of a share goes on") {
  using tokens = std::vector<std::int32_t>;
  const tokens history{7, 1, 2, 7, 3, 4, 7, 5, 6, 7};
  const auto tree = [&](int most, int branches) {
    tokens drafts(most, -1), parents(most, -1);
    const int count = prompt_lookup_tree(history, drafts, parents, branches);
    drafts.resize(count);
    parents.resize(count);
    return std::pair(drafts, parents);
  };
  CHECK(tree(2, 3) == std::pair(tokens{5, 3}, tokens{0, 0}));
  CHECK(tree(1, 64) == std::pair(tokens{5}, tokens{0}));
  CHECK(tree(0, 3) == std::pair(tokens{}, tokens{}));
  CHECK(tree(5, 2) == std::pair(tokens{5, 6, 7, 3, 4}, tokens{0, 1, 2, 0, 4}));
  CHECK(tree(5, 3) == std::pair(tokens{5, 6, 3, 4, 1}, tokens{0, 1, 0, 3, 0}));
  // the latest place is near the text's end: what it leaves goes to the next
  CHECK(tree(8, 2) == std::pair(tokens{5, 6, 7, 3, 4, 7, 5, 6}, tokens{0, 1, 2, 0, 4, 5, 6, 7}));
  CHECK(tree(4, 0) == std::pair(tokens{}, tokens{}));
}
