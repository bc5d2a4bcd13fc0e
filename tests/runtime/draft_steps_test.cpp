// The draft's steps beside the target's, replayed by hand.
#include <doctest/doctest.h>

#include <limits>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "runtime/choose_tokens.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

constexpr float noise = 0.01f;

step_row prompt_row(request_id request, const text& prompt) {
  return {.request = request, .tokens = static_cast<std::int32_t>(prompt.size()), .token_ids = prompt};
}

}  // namespace

TEST_CASE(
    "chain-advance: drafts made in one graph are those of the draft decoding by itself, K from 1 to 6") {
  const tiny_with_draft t(noise);
  tiny alone{noisy_weights(t.weights, noise, 11)};  // the draft as a model of its own
  step_executor plain = t.tiny::executor(1), drafting = alone.executor(1);
  plain.capture();
  drafting.capture();
  reference::random_integers random(test_seed());
  for (int k = 1; k <= 6; ++k) {
    if (test_small() && k % 3 == 2) continue;
    CAPTURE(k);
    const int rows = 3;
    // what a verify step reads is what the draft wrote
    std::vector<step_definition> steps = t.model->steps(llama::step_choice{.verify = true});
    const std::int32_t* tokens = nullptr;
    for (step_definition& step : steps)
      if (step.kind == step_kind::target_verify)
        step.body = [&, body = step.body](const step_context& context) {
          tokens = context.token_ids;
          body(context);
        };
    for (step_definition& step : t.draft.steps())
      if (!step.sampled) steps.push_back(std::move(step));
    step_limits limits = t.limits(rows, 6);
    limits.hidden_size = t.weights.config.hidden_size;
    limits.max_step_tokens = 64;
    step_executor executor(
        test_device(), limits, t.model->layout(), steps,
        few_buckets(limits, {.draft = t.draft.shape(),
                             .draft_lengths = test_small() ? std::vector{k} : std::vector<int>()}));
    executor.capture();
    std::vector<text> prompts;
    std::vector<step_row> batch;
    for (int r = 0; r < rows; ++r)
      prompts.push_back(random_prompt(random, static_cast<int>(random.between(2, 18)), 509));
    for (const text& prompt : prompts) batch.push_back(prompt_row(executor.open(), prompt));
    const auto first =
        executor.wait(*executor.replay({.kind = step_kind::extend, .rows = batch, .extend_draft = true}));
    std::vector<text> seen;
    for (int r = 0; r < rows; ++r) {
      seen.emplace_back(prompts[r].begin() + 1, prompts[r].end());  // a draft reads from the second token on
      seen[r].push_back(first[r].token);
    }
    for (step_row& row : batch) row = {.request = row.request, .tokens = k + 1};
    const step_ticket ticket = *executor.replay(
        {.kind = step_kind::target_verify, .rows = batch, .draft_length = k, .extend_draft = true});
    executor.wait(ticket);
    text got(static_cast<std::size_t>(rows) * (k + 1));
    executor.stream().copy(got.data(), tokens, got.size() * sizeof(std::int32_t));
    executor.stream().synchronize();
    for (int r = 0; r < rows; ++r) {
      text want{seen[r].back()};
      for (const std::int32_t token : text_of(drafting, seen[r], k)) want.push_back(token);
      CHECK(text(got.begin() + r * (k + 1), got.begin() + (r + 1) * (k + 1)) == want);
    }
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE(
    "ragged-zero, accept-zero: rows that sit a round of device drafts out go on as if it had not been") {
  const tiny_with_draft t(noise);
  step_executor plain = t.tiny::executor(1);
  plain.capture();
  step_executor executor = t.executor(draft_setup{.rows = 4, .most = 3, .poison = true, .step_tokens = 32});
  executor.capture();
  reference::random_integers random(test_seed());
  std::vector<text> prompts, want, got(4);
  std::vector<step_row> batch;
  const int length = test_small() ? 8 : 40;
  for (int r = 0; r < 4; ++r) {
    prompts.push_back(random_prompt(random, 3 + 2 * r, 509));
    want.push_back(text_of(plain, prompts[r], length));
  }
  for (const text& prompt : prompts) batch.push_back(prompt_row(executor.open(), prompt));
  const auto take = [&](const step_ticket& ticket) {
    for (int r = 0; r < 4; ++r)
      for (const std::int32_t token : executor.emitted(ticket, r)) got[r].push_back(token);
  };
  take(*executor.replay({.kind = step_kind::extend, .rows = batch, .extend_draft = true}));
  for (int round = 0; std::ranges::any_of(got, [&](const text& each) { return std::ssize(each) < length; });
       ++round) {
    REQUIRE(round < 40 * length);
    // all rows, none, the first, the last, any
    for (int r = 0; r < 4; ++r) {
      const bool sits = round % 5 == 1   ? true
                        : round % 5 == 2 ? r == 0
                        : round % 5 == 3 ? r == 3
                        : round % 5 == 4 ? random.one_in(2)
                                         : false;
      batch[r] = {.request = batch[r].request,
                  .tokens = sits ? 0 : static_cast<std::int32_t>(random.between(1, 4))};
    }
    take(*executor.replay(
        {.kind = step_kind::target_verify, .rows = batch, .draft_length = 3, .extend_draft = true}));
  }
  for (int r = 0; r < 4; ++r) CHECK(text(got[r].begin(), got[r].begin() + length) == want[r]);
  CHECK_FALSE(executor.fault());
}

TEST_CASE("a row that sits the drafts out is asked nothing: whatever its logits are, they are no fault") {
  constexpr int rows = 2, vocab = 8, most = 3, lines = rows * (most + 1);
  const stream at(test_device());
  std::vector<float> likes_five(lines * vocab, 0.0f);
  for (int line = 0; line < lines; ++line) likes_five[line * vocab + 5] = 1;
  std::vector<float> second_is_nan = likes_five;
  std::fill_n(second_is_nan.begin() + vocab, vocab, std::numeric_limits<float>::quiet_NaN());
  const device_vector<float> target(at, likes_five), draft(at, second_is_nan);
  std::vector<step_definition> steps;
  for (const step_kind kind :
       {step_kind::extend, step_kind::target_verify, step_kind::draft_extend, step_kind::draft_decode})
    steps.push_back({.kind = kind, .body = [&, kind](const step_context& step) {
                       const float* const logits =
                           kind == step_kind::draft_decode ? draft.data() : target.data();
                       choose_tokens(step, {.data = logits, .stride = vocab, .vocab_size = vocab});
                     }});
  const kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 8};
  step_executor executor(
      test_device(),
      {.max_rows = rows,
       .max_step_tokens = lines,
       .max_draft_tokens = most,
       .max_requests = rows,
       .max_context = 64,
       .vocab_size = vocab,
       .hidden_size = 8},
      layout, steps,
      {.stream = at.ref(), .draft = draft_shape{.layout = layout, .hidden_size = 8, .vocab_size = vocab}});
  executor.capture();
  std::vector<step_row> batch;
  const text prompt{1, 2};
  for (int r = 0; r < rows; ++r) batch.push_back(prompt_row(executor.open(), prompt));
  executor.wait(*executor.replay({.kind = step_kind::extend, .rows = batch, .extend_draft = true}));
  batch[0] = {.request = batch[0].request, .tokens = most + 1};
  batch[1] = {.request = batch[1].request, .tokens = 0};
  const auto results = executor.wait(*executor.replay(
      {.kind = step_kind::target_verify, .rows = batch, .draft_length = most, .extend_draft = true}));
  CHECK(results[0].count == most + 1);
  CHECK(results[1].count == 0);
  at.synchronize();
  CHECK_FALSE(executor.fault());
}

TEST_CASE("capture-order, shared-pool: the order in which steps are defined and captured changes no text") {
  const tiny_with_draft t(noise);
  reference::random_integers random(test_seed());
  reference::llama_reference plain(t.weights);
  const auto [prompt, want] = ask_reference(plain, random, 9, test_small() ? 8 : 60);
  for (int order = 0; order < 3; ++order) {
    std::vector<step_definition> steps = t.draft.steps();
    std::erase_if(steps, [](const step_definition& step) { return step.sampled; });
    std::vector<step_definition> target = t.model->steps(llama::step_choice{.verify = true});
    steps.insert(order == 0 ? steps.end() : steps.begin(), target.begin(), target.end());
    if (order == 2) std::ranges::reverse(steps);
    step_limits limits = t.limits(2, 3);
    limits.hidden_size = t.weights.config.hidden_size;
    step_executor executor(test_device(), limits, t.model->layout(), steps,
                           few_buckets(limits, {.draft = t.draft.shape(), .finish = finish_options{}}));
    executor.capture();
    speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 3});
    heard got;
    submit(loop, prompt, static_cast<int>(want.size()), got);
    loop.run();
    CHECK(got.tokens == want);
  }
}

TEST_CASE("alternate: decode, verify and draft steps in turn, a thousand rounds" *
          doctest::skip(test_small())) {
  const tiny_with_draft t(noise);
  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 2, .max_context = 512});
  executor.capture();
  const std::size_t captures = executor.captures().size();
  speculative_loop loop(executor,
                        {.drafts = draft_source::model(),
                         .draft_length = 2,
                         .choose_draft_length = [](std::uint64_t round, int) { return int(round % 3); }});
  std::vector<heard> got(12);
  for (heard& each : got) {
    each.tokens.reserve(600);
    submit(loop, {3, 1, 4}, 500, each);
  }
  const activity before = activity_now();
  loop.run();
  const activity did = activity_now() - before;
  CHECK(loop.statistics().rounds > 1000);
  CHECK(did.captures == 0);
  CHECK(did.allocations == 0);
  CHECK(did.synchronizations <= waits_of(loop.statistics().rounds + loop.statistics().prompt_steps));
  CHECK(executor.captures().size() == captures);
  for (const heard& each : got) CHECK(each.tokens == got[0].tokens);
}

TEST_CASE(
    "pad-shrink, page-edge, kv-lookahead: rows shrink from the bucket to none, prompts end at page edges") {
  const tiny_with_draft t(0.0f);
  step_executor plain = t.tiny::executor(1);
  plain.capture();
  step_executor executor =
      t.executor(draft_setup{.rows = 8, .most = 4, .page_size = 4, .poison = true, .step_tokens = 128});
  executor.capture();
  reference::random_integers random(test_seed());
  speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 4});
  std::vector<heard> got(8);
  std::vector<text> prompts, want;
  for (int r = 0; r < 8; ++r) {
    // one short of an edge, at it, and one past; each ends a while after the one before
    prompts.push_back(random_prompt(random, 4 * (r + 1) + r % 3 - 1, 509));
    want.push_back(text_of(plain, prompts[r], test_small() ? 3 + r : 8 * (r + 1)));
    submit(loop, prompts[r], static_cast<int>(want[r].size()), got[r]);
  }
  loop.run();
  for (int r = 0; r < 8; ++r) CHECK(got[r].tokens == want[r]);
  CHECK_FALSE(executor.fault());
}

TEST_CASE("a draft that does not fit its target, and rounds that cannot be, are refused by name") {
  const tiny_with_draft t(noise);
  const auto refused = [&](auto change, const char* why) {
    step_limits limits = t.limits(2, 2);
    limits.hidden_size = t.weights.config.hidden_size;
    draft_shape shape = t.draft.shape();
    change(limits, shape);
    std::vector<step_definition> steps = t.model->steps(llama::step_choice{.verify = true, .trees = true});
    for (step_definition& step : t.draft.steps())
      if (!step.sampled) steps.push_back(std::move(step));
    CHECK_THROWS_WITH_AS(step_executor(test_device(), limits, t.model->layout(), steps, {.draft = shape}),
                         doctest::Contains(why), invalid_argument);
  };
  refused([](step_limits&, draft_shape& draft) { draft.hidden_size = 64; },
          "fed states of 64 numbers, the target's have 128");
  refused([](step_limits&, draft_shape& draft) { draft.vocab_size = 500; },
          "a vocabulary of 500, the target of 509");
  refused([](step_limits& limits, draft_shape&) { limits.max_draft_tokens = 0; }, "max_draft_tokens over 0");
  refused([](step_limits&, draft_shape& draft) { draft.layout.layers = 0; }, "draft_shape");

  step_executor executor = t.executor(draft_setup{.rows = 2, .most = 3, .trees = true});
  executor.capture();
  const request_id request = executor.open();
  const text prompt{1, 2}, drafts{3, 4};
  executor.wait(*executor.replay(step_kind::extend, std::vector{prompt_row(request, prompt)}));
  const auto round_refused = [&](const step_row& row, step_round round, const char* why) {
    const std::vector<step_row> rows{row};
    round.rows = rows;
    CHECK_THROWS_WITH_AS(executor.replay(round), doctest::Contains(why), invalid_argument);
  };
  const step_row one{.request = request, .tokens = 1};
  round_refused(one, {.kind = step_kind::target_verify, .draft_length = 4},
                "a draft length of 4 is over max_draft_tokens 3");
  round_refused(one, {.kind = step_kind::decode, .draft_length = 2}, "not before decode");
  round_refused(one, {.kind = step_kind::draft_decode}, "goes with a round of the target's");
  round_refused({.request = request, .tokens = 3}, {.kind = step_kind::target_verify, .draft_length = 1},
                "has 3 tokens but 0 drafts");
  const text loop_parents{-1, 2, 1}, rootless{0, 0, 1};
  for (const text& parents : {loop_parents, rootless})
    round_refused({.request = request, .tokens = 3, .token_ids = drafts, .parents = parents},
                  {.kind = step_kind::target_verify, .variant = 2}, "check_tree");
  const text chain{-1, 0, 1};
  round_refused({.request = request, .tokens = 3, .token_ids = drafts, .parents = chain},
                {.kind = step_kind::target_verify}, "defined without trees");
}

TEST_CASE(
    "drafts that a greedy step chose are verified by a sampled round as chosen, not by the q of another's") {
  const tiny_with_draft t;
  constexpr int K = 3;
  // what is emitted, after steps of the draft that drew and left their q, or where no q is left
  const auto text = [&](bool q_is_left) {
    step_executor executor = t.executor({.rows = 1, .most = K, .sampled = true, .poison = !q_is_left});
    executor.capture();
    reference::random_integers random(test_seed());
    const request_id request = executor.open({.sampling = {.temperature = 0.8f, .seed = 5}});
    const std::vector<std::int32_t> prompt = random_prompt(random, 9, t.weights.config.vocab_size);
    std::vector<std::int32_t> all;
    const auto round = [&](step_kind kind, const step_row& row, int length, bool draws) {
      const step_ticket ticket = *executor.replay(step_round{.kind = kind,
                                                             .rows = {&row, 1},
                                                             .variant = 1,
                                                             .draft_length = length,
                                                             .extend_draft = true,
                                                             .draft_variant = draws ? 1 : 0});
      CHECK(executor.wait(ticket)[0].status == 0);
      const auto emitted = executor.emitted(ticket, 0);
      all.insert(all.end(), emitted.begin(), emitted.end());
    };
    const step_row next{.request = request, .tokens = 1}, drafted{.request = request, .tokens = K + 1};
    round(step_kind::extend, {.request = request, .tokens = 9, .token_ids = prompt}, 0, q_is_left);
    for (int i = 0; i < 10; ++i) {
      round(step_kind::decode, next, 0, q_is_left);        // its draft is made anew before it is used
      round(step_kind::decode, next, 0, false);            // a first draft that was chosen
      round(step_kind::target_verify, drafted, K, false);  // a chain that was chosen
      round(step_kind::target_verify, drafted, K, true);   // one that was drawn, behind a first that was not
    }
    CHECK_FALSE(executor.fault());
    return all;
  };
  CHECK(text(true) == text(false));
}
