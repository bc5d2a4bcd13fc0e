// What a loop refuses by name, and that it goes on after each refusal as if nothing had been asked.
#include <doctest/doctest.h>

#include "runtime/prompt_lookup.hpp"
#include "tests/runtime/loop_texts.hpp"

using namespace stepgraph;

TEST_CASE(
    "a drafter that says it proposed what cannot be is refused by text and numbers, and nothing is lost") {
  const tiny_with_draft t;
  const std::vector<asked> all = equal_texts(t, 3, 10, 30, test_seed());
  for (const bool trees : {false, true}) {
    CAPTURE(trees);
    // more drafts than the loop asks for fit in the executor's steps
    step_executor executor =
        t.executor(draft_setup{.rows = 3, .most = 6, .trees = trees, .draft = false, .step_tokens = 64});
    executor.capture();
    enum { right, one_more, many_more, none_less, wild_token, wild_parent } does = right;
    std::size_t asked_for = 0;
    const draft_source drafts{.from = draft_source::where::host,
                              .propose =
                                  [&](std::span<const std::int32_t> history, draft_proposal proposal) {
                                    asked_for = proposal.tokens.size();
                                    std::ranges::fill(proposal.tokens, does == wild_token ? 509 : 1);
                                    if (does == one_more) return static_cast<int>(asked_for) + 1;
                                    if (does == many_more) return 1 << 20;
                                    if (does == none_less) return -1;
                                    if (does == wild_parent) proposal.parents.back() = 77;
                                    if (does != right) return static_cast<int>(asked_for);
                                    return prompt_lookup(history, proposal.tokens);
                                  },
                              .trees = trees};
    speculative_loop loop(executor, {.drafts = drafts, .draft_length = 4});
    std::vector<heard> got;
    submit_all(loop, all, got);
    loop.step();
    loop.step();
    const auto rounds = loop.statistics().rounds;
    const auto number = [&](std::size_t count) { return std::to_string(count); };
    does = one_more;
    CHECK_THROWS_AS(loop.step(), invalid_argument);
    check_refused(loop, "the drafter says that it proposed " + number(asked_for + 1) + " tokens for text ");
    check_refused(loop, ", asked for at most " + number(asked_for));
    does = many_more;
    check_refused(loop, "proposed 1048576 tokens for text ");
    does = none_less;
    check_refused(loop, "proposed -1 tokens for text ");
    does = wild_token;
    check_refused(loop, "the drafter proposed token 509 for text ");
    if (trees) {
      does = wild_parent;
      check_refused(loop, "the drafter gave draft " + number(asked_for - 1) + " of text ");
    }
    CHECK(loop.statistics().rounds == rounds);
    does = right;
    check_rest(loop, all, got);
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE(
    "a step that was refused is launched once it can be: prompts, plain rounds and drafts of every kind") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 4, test_small() ? 12 : 40, test_seed());
  for (const draft_source& drafts :
       {draft_source::none(), draft_source::model(), draft_source::prompt_lookup(1)}) {
    CAPTURE(static_cast<int>(drafts.from));
    step_executor executor = t.executor(draft_setup{.rows = 2, .most = 3});
    speculative_loop loop(executor, {.drafts = drafts, .draft_length = 3});
    std::vector<heard> got;
    submit_all(loop, all, got);
    check_refused(loop, "call capture() first");
    executor.capture();
    check_rest(loop, all, got);
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE("pages that another request holds are waited for from call to call, in prompts and in mid-text") {
  const tiny_with_draft t;
  const std::vector<asked> all = equal_texts(t, 2, 10, 60, test_seed());
  for (const draft_source& drafts :
       {draft_source::none(), draft_source::model(), draft_source::prompt_lookup(1)})
    for (const int left : {1, 6}) {  // pages, of 8 tokens
      CAPTURE(static_cast<int>(drafts.from));
      CAPTURE(left);
      const int pages = 24;
      step_executor executor =
          t.executor(draft_setup{.rows = 3, .most = 3, .kv_pages = pages + 1, .step_tokens = 8 * pages});
      executor.capture();
      const request_id other = executor.open();
      const std::vector<std::int32_t> long_prompt(8 * (pages - left), 5);
      static_cast<void>(executor.wait(*executor.replay(
          step_kind::extend, std::vector{step_row{.request = other,
                                                  .tokens = static_cast<int>(long_prompt.size()),
                                                  .token_ids = long_prompt,
                                                  .following = 5}})));
      speculative_loop loop(executor, {.drafts = drafts, .draft_length = 3});
      std::vector<heard> got;
      submit_all(loop, all, got);
      int refused = 0;
      for (int i = 0; i < 40; ++i) try {
          loop.step();
        } catch (const out_of_pages&) {
          ++refused;
        }
      CHECK(refused > 3);
      executor.close(other);
      check_rest(loop, all, got);
      CHECK_FALSE(executor.fault());
    }
}

TEST_CASE("a line that another request holds keeps a text waiting from call to call") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 3, 12, test_seed());
  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 2, .draft = false});
  executor.capture();
  const request_id other = executor.open();
  speculative_loop loop(executor, {.drafts = draft_source::prompt_lookup(1), .draft_length = 2});
  std::vector<heard> got;
  submit_all(loop, all, got);
  check_refused(loop, "all 2 requests are taken");
  executor.close(other);
  check_rest(loop, all, got);
}

TEST_CASE("draft-length: a K of the model's drafts that was not captured is refused by name") {
  const tiny_with_draft t;
  const std::vector<asked> all = equal_texts(t, 2, 8, 20, test_seed());
  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 4, .options = {.draft_lengths = {3}}});
  executor.capture();
  CHECK_THROWS_WITH_AS(speculative_loop(executor, {.drafts = draft_source::model(), .draft_length = 4}),
                       doctest::Contains("no graphs for a draft length of 4, only for 1, 3"),
                       invalid_argument);
  int k = 3;
  const auto choose = [&](std::uint64_t, int) { return k; };
  speculative_loop loop(executor,
                        {.drafts = draft_source::model(), .draft_length = 4, .choose_draft_length = choose});
  std::vector<heard> got;
  submit_all(loop, all, got);
  loop.step();
  loop.step();
  for (const int wrong : {2, 4}) {
    k = wrong;
    check_refused(loop, "no graphs for a draft length of " + std::to_string(wrong) + ", only for 1, 3");
  }
  k = 5;
  check_refused(loop, "a draft length of 5 was chosen, the most is 4");
  k = 3;
  check_rest(loop, all, got);
  // without graphs any will do
  speculative_loop eager(executor, {.drafts = draft_source::model(), .draft_length = 4, .eager = true});
  submit_all(eager, all, got);
  check_rest(eager, all, got);
}

TEST_CASE("draft-length: statistics tell the K that was chosen from the drafts that a host proposed") {
  const tiny_with_draft t;
  const std::vector<asked> all = equal_texts(t, 2, 8, 20, test_seed());
  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 4, .draft = false});
  executor.capture();
  const draft_source one{.from = draft_source::where::host,
                         .propose = [](std::span<const std::int32_t>, draft_proposal proposal) {
                           proposal.tokens[0] = 1;
                           return 1;
                         }};
  speculative_loop loop(executor, {.drafts = one, .draft_length = 3});
  std::vector<heard> got;
  submit_all(loop, all, got);
  check_rest(loop, all, got);
  const speculation_statistics& did = loop.statistics();
  CHECK(did.by_draft_length == std::vector<std::uint64_t>{0, 0, 0, did.rounds});
  CHECK(did.by_proposed[0] + did.by_proposed[1] == did.rounds);
  CHECK(did.by_proposed[1] > 0);
}
