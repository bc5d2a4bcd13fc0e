#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "graphs/error.hpp"
#include "tests/runtime/draft_fixture.hpp"

/// What tests of a loop's refusals have in common.
namespace stepgraph {

/// Submits all; the texts are where `got` says.
inline void submit_all(speculative_loop& loop, const std::vector<asked>& all, std::vector<heard>& got) {
  got.assign(all.size(), {});
  for (std::size_t i = 0; i < all.size(); ++i)
    submit(loop, all[i].prompt, static_cast<int>(all[i].answer.size()), got[i]);
}

/// Steps until all has ended; every text must be whole.
inline void check_rest(speculative_loop& loop, const std::vector<asked>& all, const std::vector<heard>& got) {
  int steps = 0;
  while (steps < 5000 && loop.step()) ++steps;
  CHECK(steps < 5000);
  std::uint64_t prompts = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    prompts += all[i].prompt.size();
    CHECK(got[i].tokens == all[i].answer);
    CHECK(got[i].ended);
  }
  CHECK(loop.statistics().prompt_tokens == prompts);
}

/// Refused with `why`, as often as it is asked.
inline void check_refused(speculative_loop& loop, const std::string& why) {
  for (int i = 0; i < 3; ++i)
    CHECK_THROWS_WITH_AS(loop.step(), doctest::Contains(why.c_str()), invalid_argument);
}

}  // namespace stepgraph
