// Calls that a loop refuses while another is inside: from its callbacks, and from a second thread.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "graphs/error.hpp"
#include "runtime/speculative_loop.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

TEST_CASE("step and recapture from a callback are refused, and the loop goes on") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 3, 20, test_seed());
  step_executor executor = t.executor(draft_setup{.rows = 3, .most = 2, .draft = false});
  executor.capture();
  speculative_loop* loop_of = nullptr;
  const auto nested = [&] {
    CHECK_THROWS_WITH_AS(loop_of->step(), doctest::Contains("speculative_loop::step: called from a callback"),
                         invalid_argument);
    CHECK_THROWS_WITH_AS(loop_of->recapture(executor.limits()),
                         doctest::Contains("speculative_loop::recapture: called from a callback"),
                         invalid_argument);
  };
  const draft_source drafts{.from = draft_source::where::host,
                            .propose = [&](std::span<const std::int32_t>, draft_proposal) {
                              nested();
                              return 0;
                            }};
  speculative_loop loop(executor, {.drafts = drafts, .draft_length = 2});
  loop_of = &loop;
  std::vector<heard> got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    loop.submit({.prompt = all[i].prompt,
                 .max_tokens = static_cast<int>(all[i].answer.size()),
                 .on_token =
                     [&, i](std::int32_t token) {
                       nested();
                       got[i].tokens.push_back(token);
                     },
                 .on_end = [&](const generation_end&) { nested(); }});
  loop.run();
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(got[i].tokens == all[i].answer);
}

TEST_CASE("a loop called from a second thread while a call is inside is refused, not corrupted") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 3, 20, test_seed());
  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 2, .draft = false});
  executor.capture();
  int calls = 0, refused = 0;
  speculative_loop* inside = nullptr;
  const auto disturb = [&] {
    std::thread([&] {
      const auto refuse = [&](auto&& call) {
        ++calls;
        try {
          call();
        } catch (const invalid_argument& why) {
          refused += std::string(why.what()).find("a call of another thread is inside") != std::string::npos;
        }
      };
      refuse([&] { inside->submit({.prompt = {1}, .max_tokens = 1}); });
      for (generation_id id = 1; id <= 3; ++id) refuse([&] { inside->stop(id); });
      refuse([&] { inside->step(); });
      refuse([&] { inside->run(); });
      refuse([&] { inside->recapture(executor.limits()); });
    }).join();
  };
  const draft_source drafts{.from = draft_source::where::host,
                            .propose = [&](std::span<const std::int32_t>, draft_proposal) {
                              disturb();
                              return 0;
                            }};
  speculative_loop loop(executor, {.drafts = drafts, .draft_length = 2});
  inside = &loop;
  std::vector<heard> got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    loop.submit({.prompt = all[i].prompt,
                 .max_tokens = static_cast<int>(all[i].answer.size()),
                 .on_token =
                     [&, i](std::int32_t token) {
                       got[i].tokens.push_back(token);
                       disturb();
                     },
                 .on_end =
                     [&, i](const generation_end&) {
                       got[i].ended = true;
                       disturb();
                     }});
  loop.run();
  CHECK(calls > 0);
  CHECK(refused == calls);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(got[i].tokens == all[i].answer);
    CHECK(got[i].ended);
  }
  // one after another both may
  std::thread([&] {
    loop.submit({.prompt = {1}, .max_tokens = 1});
    loop.run();
  }).join();
  CHECK(loop.statistics().prompt_tokens > 0);
}
