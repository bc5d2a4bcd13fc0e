// What whoever a loop tells or asks may do: stop texts, submit others, throw; and what it may not.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "graphs/error.hpp"
#include "runtime/speculative_loop.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

struct thrown_by_callback : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Every way to draft, by name.
struct way {
  std::string name;
  draft_setup setup;
  speculative_options how;
};

std::vector<way> all_ways() {
  const auto device = draft_source::model(), look_up = draft_source::prompt_lookup(1),
             trees = draft_source::prompt_lookup(2);
  return {
      {"plain, ahead", {.rows = 3, .draft = false}, {}},
      {"plain, waited", {.rows = 3, .draft = false}, {.run_ahead = false}},
      {"model, ahead", {.rows = 3, .most = 3}, {.drafts = device, .draft_length = 3}},
      {"model, waited", {.rows = 3, .most = 3}, {.drafts = device, .draft_length = 3, .run_ahead = false}},
      {"host chains", {.rows = 3, .most = 3, .draft = false}, {.drafts = look_up, .draft_length = 3}},
      {"host trees",
       {.rows = 3, .most = 4, .trees = true, .draft = false},
       {.drafts = trees, .draft_length = 4}},
  };
}

/// Steps until all has ended, whatever is thrown by callbacks on the way; how often that was.
int run_through(speculative_loop& loop) {
  int thrown = 0;
  for (int calls = 0; calls < 5000; ++calls) try {
      if (!loop.step()) return thrown;
    } catch (const thrown_by_callback&) {
      ++thrown;
    }
  FAIL_CHECK("the loop does not end");
  return thrown;
}

}  // namespace

TEST_CASE(
    "a text may stop itself while it is told a token: what its functions hold lives until they return") {
  const tiny_with_draft t;
  for (const way& by : all_ways()) {
    CAPTURE(by.name);
    step_executor executor = t.executor(by.setup);
    executor.capture();
    speculative_loop loop(executor, by.how);
    bool there = false, told = false;
    std::ptrdiff_t read = 0;
    std::weak_ptr<int> held;
    generation_id self = 0;
    {
      const auto counted = std::make_shared<int>(0);
      held = counted;
      self = loop.submit({.prompt = {1, 2, 3},
                          .max_tokens = 100,
                          .on_token =
                              [&, counted, name = std::string(1000, 'n')](std::int32_t) {
                                if (++*counted < 3) return;
                                std::weak_ptr<int>& still = held;
                                bool& seen = there;
                                loop.stop(self);
                                read = std::ranges::count(name, 'n');
                                seen = !still.expired();
                              },
                          .on_end =
                              [&](const generation_end& end) {
                                told = true;
                                CHECK(end.reason == finish_reason::host_stop);
                              }});
    }
    loop.run();
    CHECK(told);
    CHECK(there);
    CHECK(read == 1000);
    CHECK(held.expired());
  }
}

TEST_CASE("texts may be stopped and submitted from every callback") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 6, test_small() ? 12 : 40, test_seed());
  for (const way& by : all_ways()) {
    CAPTURE(by.name);
    step_executor executor = t.executor(by.setup);
    executor.capture();
    reference::random_integers random(test_seed());
    speculative_loop* loop_of = nullptr;
    std::vector<generation_id> ids;
    const auto stop_one = [&] {
      if (!ids.empty() && random.one_in(12)) loop_of->stop(ids[random.below(std::ssize(ids))]);
    };
    speculative_options how = by.how;
    if (how.drafts.propose)
      how.drafts.propose = [&, propose = how.drafts.propose](std::span<const std::int32_t> history,
                                                             draft_proposal proposal) {
        const text before(history.begin(), history.end());
        for (int i = 0; i < 3; ++i) stop_one();
        CHECK(std::ranges::equal(history, before));
        return propose(history, proposal);
      };
    if (how.draft_length > 0)
      how.choose_draft_length = [&](std::uint64_t, int) {
        stop_one();
        return how.draft_length;
      };
    speculative_loop loop(executor, how);
    loop_of = &loop;
    struct known {
      const asked* of;
      text told{};
      bool ended = false;
    };
    std::vector<std::shared_ptr<known>> texts;
    std::function<void()> submit_one = [&] {
      const auto mine = std::make_shared<known>(known{&all[texts.size() % all.size()]});
      texts.push_back(mine);
      ids.push_back(loop.submit({.prompt = mine->of->prompt,
                                 .max_tokens = static_cast<int>(mine->of->answer.size()),
                                 .on_token =
                                     [&, mine](std::int32_t token) {
                                       mine->told.push_back(token);
                                       stop_one();
                                     },
                                 .on_end =
                                     [&, mine](const generation_end&) {
                                       CHECK_FALSE(mine->ended);
                                       mine->ended = true;
                                       if (texts.size() < 24) submit_one();
                                       stop_one();
                                     }}));
    };
    for (int i = 0; i < 5; ++i) submit_one();
    run_through(loop);
    for (const auto& each : texts) {
      CHECK(each->ended);
      CHECK(std::ranges::equal(each->told, std::span(each->of->answer).first(each->told.size())));
    }
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE("a callback that throws loses no token and repeats none, of its text or another's") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, test_small() ? 5 : 12, test_small() ? 12 : 50, test_seed());
  for (const way& by : all_ways()) {
    CAPTURE(by.name);
    step_executor executor = t.executor(by.setup);
    executor.capture();
    reference::random_integers random(test_seed());
    int threw = 0;
    const auto maybe_throw = [&](const char* who) {
      if (!random.one_in(4)) return;
      ++threw;
      throw thrown_by_callback(who);
    };
    speculative_options how = by.how;
    if (how.drafts.propose)
      how.drafts.propose = [&, propose = how.drafts.propose](std::span<const std::int32_t> history,
                                                             draft_proposal proposal) {
        maybe_throw("drafter");
        return propose(history, proposal);
      };
    if (how.draft_length > 0)
      how.choose_draft_length = [&](std::uint64_t, int) {
        maybe_throw("choose_draft_length");
        return how.draft_length;
      };
    speculative_loop loop(executor, how);
    std::vector<heard> got(all.size());
    std::uint64_t prompts = 0, answers = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      prompts += all[i].prompt.size();
      answers += all[i].answer.size();
      loop.submit({.prompt = all[i].prompt,
                   .max_tokens = static_cast<int>(all[i].answer.size()),
                   .on_token =
                       [&, i](std::int32_t token) {
                         got[i].tokens.push_back(token);
                         maybe_throw("on_token");
                       },
                   .on_end =
                       [&, i](const generation_end& end) {
                         CHECK_FALSE(got[i].ended);
                         got[i].ended = true;
                         got[i].end = end;
                         maybe_throw("on_end");
                       }});
    }
    CHECK(run_through(loop) == threw);
    CHECK(threw > 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(got[i].tokens == all[i].answer);
      CHECK(got[i].ended);
      CHECK(got[i].end.reason == finish_reason::token_budget);
    }
    CHECK(loop.statistics().prompt_tokens == prompts);
    CHECK(loop.statistics().emitted == answers);
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE("a token that throws, then a recapture that hands out the rest") {
  const tiny_with_draft t;
  const std::vector<asked> all = equal_texts(t, 3, 5, 20, test_seed());
  step_executor executor = t.executor(draft_setup{.rows = 3, .most = 2});
  executor.capture();
  speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 2});
  std::vector<heard> got(all.size());
  bool throws = true;
  for (std::size_t i = 0; i < all.size(); ++i)
    loop.submit({.prompt = all[i].prompt,
                 .max_tokens = static_cast<int>(all[i].answer.size()),
                 .on_token =
                     [&, i](std::int32_t token) {
                       got[i].tokens.push_back(token);
                       if (throws) throw thrown_by_callback("on_token");
                     },
                 .on_end = [&, i](const generation_end&) { got[i].ended = true; }});
  loop.step();
  const step_limits limits = executor.limits();
  const executor_options buckets = few_buckets(limits);
  CHECK_THROWS_AS(loop.recapture(limits, buckets.row_buckets, buckets.token_buckets), thrown_by_callback);
  throws = false;
  loop.recapture(limits, buckets.row_buckets, buckets.token_buckets);
  CHECK(run_through(loop) == 0);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(got[i].tokens == all[i].answer);
}

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
  run_through(loop);
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
  run_through(loop);
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
