// What a loop refuses by name, and that it goes on after each refusal as if nothing had been asked.
#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "runtime/prompt_lookup.hpp"
#include "runtime/speculative_loop.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

/// Submits all; the texts are where `got` says.
void submit_all(speculative_loop& loop, const std::vector<asked>& all, std::vector<heard>& got) {
  got.assign(all.size(), {});
  for (std::size_t i = 0; i < all.size(); ++i)
    submit(loop, all[i].prompt, static_cast<int>(all[i].answer.size()), got[i]);
}

/// Steps until all has ended; every text must be whole.
void check_rest(speculative_loop& loop, const std::vector<asked>& all, const std::vector<heard>& got) {
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
void check_refused(speculative_loop& loop, const std::string& why) {
  for (int i = 0; i < 3; ++i)
    CHECK_THROWS_WITH_AS(loop.step(), doctest::Contains(why.c_str()), invalid_argument);
}

/// The tiny model's steps but those that `without` is true of, with `options`.
template <class Without>
step_executor executor_without(const tiny_with_draft& t, Without&& without, bool draft = false,
                               executor_options options = {}) {
  step_limits limits = t.limits(2, 2);
  limits.hidden_size = t.weights.config.hidden_size;
  std::vector<step_definition> steps =
      t.model->steps(llama::step_choice{.verify = true, .sampled = true, .trees = true});
  if (draft) {
    options.draft = t.draft.shape();
    for (step_definition& step : t.draft.steps()) steps.push_back(std::move(step));
  }
  std::erase_if(steps, without);
  options.finish = finish_options{};
  return {test_device(), limits, t.model->layout(), std::move(steps), few_buckets(limits, options)};
}

}  // namespace

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
      const text long_prompt(8 * (pages - left), 5);
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

TEST_CASE("a loop names the steps that its executor lacks, before anything is submitted") {
  const tiny_with_draft t;
  const auto refused = [](step_executor executor, const speculative_options& how, const char* why) {
    CHECK_THROWS_WITH_AS(speculative_loop(executor, how), doctest::Contains(why), invalid_argument);
  };
  const auto lacks = [](step_kind kind, int variant = -1) {
    return [=](const step_definition& step) {
      return step.kind == kind && (variant < 0 || step.variant == variant);
    };
  };
  const auto nothing = [](const step_definition&) { return false; };
  const auto model = [](int most) {
    return speculative_options{.drafts = draft_source::model(), .draft_length = most};
  };
  const auto look_up = [](int branches) {
    return speculative_options{.drafts = draft_source::prompt_lookup(branches), .draft_length = 2};
  };
  refused(executor_without(t, lacks(step_kind::decode)), {}, "the executor has no decode step, variant 0");
  refused(executor_without(t, lacks(step_kind::extend)), {}, "the executor has no extend step, variant 0");
  refused(executor_without(t, lacks(step_kind::target_verify)), look_up(1),
          "the executor has no target_verify step, variant 0");
  refused(executor_without(t, [](const step_definition& step) { return step.tree; }), look_up(2),
          "the executor has no target_verify step for trees, variant 2");
  speculative_options swapped = look_up(2);
  swapped.greedy_tree_variant = swapped.sampled_tree_variant = 0;
  refused(executor_without(t, nothing), swapped,
          "the executor has no target_verify step for trees, variant 0");
  refused(executor_without(t, lacks(step_kind::draft_extend), true), model(2),
          "the executor has no draft_extend step, variant 0");
  refused(executor_without(t, lacks(step_kind::draft_decode), true), model(2),
          "the executor has no draft_decode step, variant 0");
  // what is not used need not be there
  {
    step_executor executor = executor_without(t, lacks(step_kind::target_verify));
    CHECK_NOTHROW(speculative_loop(executor, {}));
  }
  {
    step_executor executor = executor_without(t, lacks(step_kind::draft_decode), true);
    CHECK_NOTHROW(speculative_loop(executor, model(1)));
  }
  {
    step_executor executor = executor_without(t, lacks(step_kind::target_verify, 0));
    CHECK_NOTHROW(speculative_loop(executor, look_up(2)));
  }
}

TEST_CASE("a loop refuses a request whose steps its executor lacks, and the other texts go on") {
  const tiny_with_draft t;
  const std::vector<asked> all = some_texts(t, 2, 12, test_seed());
  const sampling_settings warm{.temperature = 1.0f, .seed = 3};
  const auto sampled = [](const step_definition& step) { return step.sampled; };
  step_executor greedy = executor_without(t, sampled, true);
  greedy.capture();
  for (const draft_source& drafts : {draft_source::none(), draft_source::model()}) {
    speculative_loop loop(greedy, {.drafts = drafts, .draft_length = 2});
    std::vector<heard> got;
    submit_all(loop, all, got);
    loop.step();
    heard none;
    CHECK_THROWS_WITH_AS(submit(loop, {1, 2}, 5, none, warm),
                         doctest::Contains("the executor has no sampled decode step, variant 1"),
                         invalid_argument);
    check_rest(loop, all, got);
    CHECK_FALSE(none.ended);
  }
  // a step that does not sample is none that does
  speculative_loop unsampled(greedy, {.sampled_variant = 0});
  CHECK_THROWS_WITH_AS(unsampled.submit({.prompt = {1}, .sampling = warm}),
                       doctest::Contains("the executor has no sampled decode step, variant 0"),
                       invalid_argument);
  // nor is one of the draft's
  step_executor half = executor_without(
      t, [](const step_definition& step) { return step.sampled && is_draft(step.kind); }, true);
  speculative_loop drafted(half, {.drafts = draft_source::model(), .draft_length = 2});
  CHECK_THROWS_WITH_AS(drafted.submit({.prompt = {1}, .sampling = warm}),
                       doctest::Contains("the executor has no sampled draft_extend step, variant 1"),
                       invalid_argument);
  // sampled steps alone take sampled requests alone
  step_executor drawing = executor_without(t, [](const step_definition& step) { return !step.sampled; });
  speculative_loop draws(drawing, {});
  CHECK_THROWS_WITH_AS(draws.submit({.prompt = {1}}),
                       doctest::Contains("the executor has no decode step, variant 0"), invalid_argument);
  CHECK_NOTHROW(draws.submit({.prompt = {1}, .sampling = warm}));
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

TEST_CASE("a loop over a request table of the embedder's is refused by name") {
  const tiny_with_draft t;
  const stream mine(test_device());
  const step_limits limits = t.limits(1);
  const device_vector<std::int32_t> pages(mine, 32, 1), seq_lens(mine, 1, 0), last_token(mine, 1, 5);
  step_executor executor(test_device(), limits, t.model->layout(), t.model->steps(),
                         {.stream = mine.ref(),
                          .requests = adopted_requests{.source = {.table = pages.data(),
                                                                  .row_stride = 32,
                                                                  .requests = 1,
                                                                  .columns = 32,
                                                                  .page_shift = 3,
                                                                  .page_granular = true,
                                                                  .pool_pages = 33},
                                                       .seq_lens = seq_lens.data(),
                                                       .last_token = last_token.data()},
                          .finish = finish_options{}});
  CHECK_THROWS_WITH_AS(speculative_loop(executor, {}),
                       doctest::Contains("the executor's request table is the embedder's"), invalid_argument);
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
