#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "tests/runtime/draft_fixture.hpp"

namespace stepgraph {

using text = std::vector<std::int32_t>;

/// What is asked of a loop whose texts end by their budget alone.
struct wanted_text {
  text prompt;
  int length;
  sampling_settings sampling;
};

/// The texts that a loop gives to `all`, in flight together. `accepted`: grows by the drafts that were kept.
inline std::vector<text> texts_of(step_executor& executor, const std::vector<wanted_text>& all,
                                  const speculative_options& how, std::uint64_t* accepted = nullptr) {
  speculative_loop loop(executor, how);
  std::vector<heard> got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    submit(loop, all[i].prompt, all[i].length, got[i], all[i].sampling);
  loop.run();
  std::vector<text> texts;
  for (const heard& each : got) {
    CHECK(each.end.reason == finish_reason::token_budget);
    texts.push_back(each.tokens);
  }
  CHECK_FALSE(executor.fault());
  if (accepted) *accepted += loop.statistics().accepted;
  return texts;
}

}  // namespace stepgraph
