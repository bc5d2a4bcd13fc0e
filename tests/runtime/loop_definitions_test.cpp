// A loop names the steps that its executor lacks: for all texts as it is made, for one kind of them as one is submitted.
#include <doctest/doctest.h>

#include "tests/device_vector.hpp"
#include "tests/runtime/loop_texts.hpp"

using namespace stepgraph;

namespace {

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
