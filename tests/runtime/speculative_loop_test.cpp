// The loop over draft, verify and draft-extend steps: greedy text is that of plain decoding, whatever the draft,
// K, batch, page size, and however far ahead the host runs.
#include "runtime/speculative_loop.hpp"

#include <doctest/doctest.h>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "tests/allocation_counter.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

/// Answers all and checks every text.
void check_texts(step_executor& executor, const std::vector<asked>& all, const speculative_options& how,
                 speculation_statistics* statistics = nullptr) {
  speculative_loop loop(executor, how);
  std::vector<heard> got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    submit(loop, all[i].prompt, static_cast<int>(all[i].answer.size()), got[i]);
  loop.run();
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(got[i].tokens == all[i].answer);
    CHECK(got[i].ended);
    CHECK(got[i].end.reason == finish_reason::token_budget);
  }
  CHECK_FALSE(executor.fault());
  if (statistics) *statistics = loop.statistics();
}

}  // namespace

TEST_CASE("lossless: a loop's greedy text is plain decoding's, K from 0 to 8, rows joining and leaving") {
  const tiny_with_draft t(0.002f);
  const std::vector<asked> all = some_texts(t, test_small() ? 4 : 24, test_small() ? 10 : 80, test_seed());
  for (int most = 0; most <= 8; ++most) {
    if (test_small() && most != 4) continue;
    CAPTURE(most);
    step_executor executor = t.executor(draft_setup{.rows = 5, .most = most, .poison = most == 4});
    executor.capture();
    const activity before = activity_now();
    speculation_statistics waited, ahead;
    for (const bool run_ahead : {false, true})
      check_texts(executor, all,
                  {.drafts = most > 0 ? draft_source::model() : draft_source::none(),
                   .draft_length = most,
                   .run_ahead = run_ahead},
                  run_ahead ? &ahead : &waited);
    CHECK(activity_now().captures == before.captures);
    CHECK(activity_now().allocations == before.allocations);
    CHECK(ahead.emitted == waited.emitted);
    if (test_small() || most == 0) continue;
    MESSAGE("K ", most, ": ", double(ahead.emitted) / double(ahead.row_rounds), " tokens a round");
    // the longest are rare enough to be counted together
    const std::size_t rare = 6;
    std::uint64_t longest = 0;
    for (std::size_t accepted = 0; accepted < ahead.by_accepted.size(); ++accepted)
      if (accepted >= rare)
        longest += ahead.by_accepted[accepted];
      else
        CHECK_MESSAGE(ahead.by_accepted[accepted] > 0, "an accept length never occurred");
    CHECK((most < static_cast<int>(rare) || longest > 0));
  }
}

TEST_CASE("the same eagerly, at page size 1, and with up to 32 rows" * doctest::skip(test_small())) {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 40, 30, test_seed() + 1);
  const speculative_options how{.drafts = draft_source::model(), .draft_length = 3};
  step_executor eager = t.executor(draft_setup{.rows = 3, .most = 3});
  speculative_options eagerly = how;
  eagerly.eager = true;
  check_texts(eager, std::vector(all.begin(), all.begin() + 8), eagerly);
  CHECK(eager.statistics().total().replays == 0);
  for (const int rows : {1, 32}) {
    step_executor executor = t.executor(draft_setup{.rows = rows, .most = 3, .page_size = 1, .poison = true});
    executor.capture();
    check_texts(executor, all, how);
  }
}

TEST_CASE("draft-length: K changes from round to round, 0 included, without a capture") {
  const tiny_with_draft t;
  const std::vector<asked> all =
      some_texts(t, test_small() ? 3 : 12, test_small() ? 10 : 50, test_seed() + 2);
  step_executor executor = t.executor(draft_setup{.rows = 4, .most = 6});
  executor.capture();
  const activity before = activity_now();
  reference::random_integers random(test_seed());
  speculation_statistics did;
  check_texts(executor, all,
              {.drafts = draft_source::model(),
               .draft_length = 6,
               .choose_draft_length = [&](std::uint64_t, int) { return static_cast<int>(random.below(7)); }},
              &did);
  CHECK(activity_now().captures == before.captures);
  if (!test_small())
    for (const std::uint64_t rounds : did.by_draft_length) CHECK(rounds > 0);
  check_texts(executor, all, {.drafts = draft_source::model(), .draft_length = 6, .adaptive = true});
}

TEST_CASE("draft-length: an adaptive loop keeps to the lengths that were captured, whatever it measures") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, test_small() ? 2 : 8, test_small() ? 30 : 70, test_seed() + 3);
  step_executor executor =
      t.executor(draft_setup{.rows = 2, .most = 6, .options = {.draft_lengths = {3, 5}}});
  executor.capture();
  CHECK(executor.draft_lengths() == std::vector<int>{1, 3, 5});
  speculation_statistics did;
  check_texts(executor, all, {.drafts = draft_source::model(), .draft_length = 6, .adaptive = true}, &did);
  for (const int k : {2, 4, 6}) CHECK(did.by_draft_length[k] == 0);
  std::uint64_t drafted = 0;
  for (const int k : {1, 3, 5}) drafted += did.by_draft_length[k];
  CHECK(drafted > 0);
}

TEST_CASE("lossless, shape-grid: trees of every shape, rows joining and leaving, page sizes 1 and 4") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, test_small() ? 3 : 16, test_small() ? 8 : 50, test_seed() + 3);
  for (const int page_size : {1, 4})
    for (const int nodes : {1, 7, 31, 63}) {
      if (test_small() && nodes != 7) continue;
      CAPTURE(page_size);
      CAPTURE(nodes);
      step_executor executor = t.executor(draft_setup{
          .rows = 3, .most = nodes, .trees = true, .draft = false, .page_size = page_size, .poison = true});
      executor.capture();
      const draft_source trees{.from = draft_source::where::host,
                               .propose = growing_trees(all, t.weights.config.vocab_size, test_seed()),
                               .trees = true};
      speculation_statistics did;
      check_texts(executor, all, {.drafts = trees, .draft_length = nodes}, &did);
      if (!test_small()) CHECK(did.accepted > did.row_rounds / 8);
    }
}

TEST_CASE("prompt look-up, as chains and as trees, leaves the text as it is") {
  const tiny_with_draft t;
  std::vector<asked> all = some_texts(t, test_small() ? 2 : 8, test_small() ? 8 : 40, test_seed() + 6);
  for (const int branches : {1, 3}) {
    step_executor executor =
        t.executor(draft_setup{.rows = 3, .most = 6, .trees = branches > 1, .draft = false});
    executor.capture();
    check_texts(executor, all, {.drafts = draft_source::prompt_lookup(branches), .draft_length = 6});
  }
}

TEST_CASE("a text ends at an end-of-sequence id, its budget, its context or the host's word") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 4, 40, test_seed() + 4);
  const asked* longest = &all[0];
  for (const asked& each : all)
    if (each.answer.size() > longest->answer.size()) longest = &each;
  const std::int32_t end_id = longest->answer[longest->answer.size() / 2];
  const auto first = std::ranges::find(longest->answer, end_id) - longest->answer.begin() + 1;
  step_executor executor =
      t.executor(draft_setup{.rows = 4, .most = 4, .end_ids = {end_id}, .max_context = 64});
  executor.capture();
  speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 4});
  heard to_end, to_context, stopped, stopped_early;
  submit(loop, longest->prompt, 1000, to_end);
  submit(loop, text(40, 7), 1000, to_context);
  generation_id self = 0;
  self = loop.submit({.prompt = {1, 2, 3},
                      .max_tokens = 1000,
                      .on_token =
                          [&](std::int32_t token) {
                            stopped.tokens.push_back(token);
                            if (stopped.tokens.size() == 3) loop.stop(self);
                          },
                      .on_end = [&](const generation_end& end) { stopped.end = end; }});
  const generation_id early = submit(loop, {5}, 10, stopped_early);
  loop.stop(early);
  CHECK(stopped_early.end.reason == finish_reason::host_stop);
  loop.run();
  CHECK(to_end.end.reason == finish_reason::end_of_sequence);
  CHECK(to_end.tokens == text(longest->answer.begin(), longest->answer.begin() + first));
  if (to_context.end.reason != finish_reason::end_of_sequence) {
    CHECK(to_context.end.reason == finish_reason::context_limit);
    CHECK(to_context.tokens.size() == 64 - 40 + 1);
  }
  CHECK((stopped.end.reason == finish_reason::host_stop || stopped.tokens.size() < 3));
  CHECK(stopped.tokens.size() <= 3);
}

TEST_CASE("abort-reuse: pages and lines of an aborted text are asked for at once, a round ahead") {
  const tiny_with_draft t;
  const std::vector<asked> all =
      some_texts(t, test_small() ? 6 : 30, test_small() ? 16 : 30, test_seed() + 5);
  // two lines, and pages for no more than two texts
  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 4, .kv_pages = 25, .poison = true});
  executor.capture();
  speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 4});
  std::vector<heard> got(all.size());
  std::vector<generation_id> ids;
  for (std::size_t i = 0; i < all.size(); ++i)
    ids.push_back(submit(loop, all[i].prompt, static_cast<int>(all[i].answer.size()), got[i]));
  reference::random_integers random(test_seed());
  while (loop.step())
    if (random.one_in(4)) loop.stop(ids[random.below(std::ssize(ids))]);
  int whole = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(got[i].ended);
    CHECK(got[i].tokens == text(all[i].answer.begin(), all[i].answer.begin() + std::ssize(got[i].tokens)));
    whole += got[i].tokens == all[i].answer;
  }
  CHECK(whole > 0);
  CHECK_FALSE(executor.fault());
  executor.stream().synchronize();
}

TEST_CASE("alternate: steady rounds neither allocate, synchronise nor capture") {
  const tiny_with_draft t;
  step_executor executor = t.executor(draft_setup{.rows = 4, .most = 4});
  executor.capture();
  speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 4});
  std::vector<heard> got(4);
  reference::random_integers random(test_seed());
  for (heard& each : got) {
    each.tokens.reserve(300);
    submit(loop, random_prompt(random, 5, 509), test_small() ? 55 : 150, each);
  }
  for (int i = 0; i < 6; ++i) loop.step();
  const activity before = activity_now();
  const std::uint64_t host_before = host_allocations();
  const int rounds = test_small() ? 4 : 10;
  for (int i = 0; i < rounds; ++i) loop.step();
  const activity did = activity_now() - before;
  CHECK(did.allocations == 0);
  CHECK(did.captures == 0);
  CHECK(did.instantiations == 0);
  CHECK(did.launches == 3 * rounds);
  CHECK(did.synchronizations <= waits_of(rounds));
  CHECK(host_allocations() == host_before);
  loop.run();
}

TEST_CASE("what a loop cannot do is refused by name") {
  const tiny_with_draft t;
  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 2, .draft = false});
  const auto refused = [&](const speculative_options& how, const char* why) {
    CHECK_THROWS_WITH_AS(speculative_loop(executor, how), doctest::Contains(why), invalid_argument);
  };
  refused({.draft_length = 3}, "draft_length 3 is over max_draft_tokens 2");
  refused({.drafts = draft_source::model(), .draft_length = 2}, "the executor has none");
  step_executor plain = t.tiny::executor(1);
  CHECK_THROWS_WITH_AS(speculative_loop(plain, {}), doctest::Contains("executor_options::finish"),
                       invalid_argument);
  speculative_loop loop(executor, {});
  CHECK_THROWS_WITH_AS(loop.submit({.prompt = {}}), doctest::Contains("empty"), invalid_argument);
  CHECK_THROWS_WITH_AS(loop.submit({.prompt = text(256, 1)}), doctest::Contains("256 tokens"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(loop.submit({.prompt = {509}}), doctest::Contains("token id 509"), invalid_argument);
}
