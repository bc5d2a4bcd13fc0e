// Sampled text through the loop: it depends on the request's seed and number alone, and has the target's
// distribution whatever the draft; rows whose logits are NaN end alone.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "runtime/speculative_loop.hpp"
#include "tests/runtime/draft_fixture.hpp"
#include "tests/runtime/wanted_text.hpp"

using namespace stepgraph;

namespace {

std::vector<wanted_text> some_wanted(int count, int longest, std::uint64_t seed) {
  reference::random_integers random(seed);
  std::vector<wanted_text> all;
  for (int i = 0; i < count; ++i) {
    wanted_text one{
        random_prompt(random, static_cast<int>(random.between(1, 30)), 509),
        static_cast<int>(random.between(1, longest)),
        {.seed = static_cast<std::uint64_t>(random.below(1000)), .request = std::uint64_t(i) + 1}};
    if (!random.one_in(4)) one.sampling.temperature = 0.5f + 0.1f * float(random.below(10));
    if (random.one_in(2)) one.sampling.top_k = static_cast<int>(random.between(2, 40));
    if (random.one_in(2)) one.sampling.top_p = 0.8f;
    if (random.one_in(3)) one.sampling.min_p = 0.05f;
    all.push_back(std::move(one));
  }
  return all;
}

/// In small tests one bucket and one K, so that little is captured.
executor_options one_bucket(int rows, int draft_length) {
  if (!test_small()) return {};
  return {.row_buckets = bucket_policy::exactly({rows}), .draft_lengths = {draft_length}};
}

}  // namespace

TEST_CASE(
    "the same seed gives the same text, whatever the batch, the bucket, and how far ahead the host runs") {
  const tiny_with_draft t(0.01f);
  const auto all = some_wanted(test_small() ? 3 : 14, test_small() ? 6 : 40, test_seed());
  for (const int most : {0, 3}) {
    CAPTURE(most);
    const speculative_options how{.drafts = most > 0 ? draft_source::model() : draft_source::none(),
                                  .draft_length = most};
    std::vector<text> first;
    for (const int rows : {1, 3, 8}) {
      if (test_small() && rows == 8) continue;
      step_executor executor = t.executor(draft_setup{.rows = rows,
                                                      .most = most,
                                                      .sampled = true,
                                                      .poison = rows == 3,
                                                      .step_tokens = 40,
                                                      .options = one_bucket(rows, most)});
      executor.capture();
      for (const bool ahead : {true, false}) {
        speculative_options now = how;
        now.run_ahead = ahead;
        const std::vector<text> texts = texts_of(executor, all, now);
        if (first.empty()) first = texts;
        CHECK(texts == first);
      }
    }
    step_executor eager = t.executor(draft_setup{.rows = 4, .most = most, .sampled = true});
    speculative_options eagerly = how;
    eagerly.eager = true;
    CHECK(texts_of(eager, all, eagerly) == first);
  }
}

TEST_CASE("greedy rows in a sampled batch have plain decoding's text") {
  const tiny_with_draft t(0.01f);
  reference::random_integers random(test_seed());
  step_executor plain = t.tiny::executor(1);
  plain.capture();
  step_executor executor = t.executor(draft_setup{.rows = 4, .most = 3, .sampled = true});
  executor.capture();
  speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 3});
  std::vector<heard> greedy(4), sampled(4);
  std::vector<text> prompts;
  for (int i = 0; i < 4; ++i) {
    prompts.push_back(random_prompt(random, 4 + i, 509));
    submit(loop, prompts[i], test_small() ? 6 : 30, greedy[i]);
    submit(loop, prompts[i], test_small() ? 4 : 20, sampled[i], {.temperature = 1.0f, .seed = 5});
  }
  loop.run();
  for (int i = 0; i < 4; ++i) CHECK(greedy[i].tokens == text_of(plain, prompts[i], test_small() ? 6 : 30));
}

TEST_CASE("sampled text has the target's distribution, with drafts and without" *
          doctest::skip(test_small())) {
  // counts of the first three tokens over many requests, top-k 3: no drafts beside a good and a bad draft
  const int requests = 3000;
  const text prompt{11, 4, 200, 37};
  std::vector<std::map<text, int>> counts;
  for (const float noise : {-1.0f, 0.01f, 0.3f}) {
    const tiny_with_draft t(std::abs(noise));
    const int most = noise < 0 ? 0 : 2;
    step_executor executor = t.executor(draft_setup{.rows = 32, .most = most, .sampled = true});
    executor.capture();
    speculative_loop loop(
        executor, {.drafts = most > 0 ? draft_source::model() : draft_source::none(), .draft_length = most});
    std::vector<heard> got(requests);
    for (heard& each : got)
      submit(loop, prompt, 3, each, {.temperature = 1.5f, .top_k = 3, .seed = test_seed() + counts.size()});
    loop.run();
    counts.emplace_back();
    for (const heard& each : got) ++counts.back()[each.tokens];
  }
  for (std::size_t with = 1; with < counts.size(); ++with) {
    // two samples of one distribution: sum of (a - b)^2 / (a + b) is chi-square
    double chi = 0;
    int cells = 0;
    std::map<text, int> all = counts[0];
    for (const auto& [tokens, count] : counts[with]) all[tokens] += count;
    int rare[2] = {0, 0};
    for (const auto& [tokens, sum] : all) {
      const int a = counts[0].contains(tokens) ? counts[0].at(tokens) : 0, b = sum - a;
      if (sum < 20) {
        rare[0] += a;
        rare[1] += b;
        continue;
      }
      chi += double(a - b) * (a - b) / sum;
      ++cells;
    }
    if (const int sum = rare[0] + rare[1]; sum >= 20) {
      chi += double(rare[0] - rare[1]) * (rare[0] - rare[1]) / sum;
      ++cells;
    }
    CHECK(cells > 5);
    // far in the tail: five deviations over the mean
    CHECK(chi < cells - 1 + 5 * std::sqrt(2.0 * (cells - 1)));
  }
}

TEST_CASE("a row whose logits are NaN ends with a named status, and its neighbours know nothing of it") {
  // a token whose embedding is NaN: whoever reads it has NaN logits
  const llama::llama_weights sound =
      noisy_weights(llama::make_tiny_weights(7, llama::tiny_config()), 0.0f, 1);
  const std::int32_t bad = 500;
  llama::llama_weights spoilt = sound;
  std::vector<float> embedding(sound.token_embedding.rows * sound.token_embedding.columns);
  for (std::int64_t row = 0; row < sound.token_embedding.rows; ++row)
    llama::dequantize_row(
        sound.token_embedding, row,
        std::span(embedding).subspan(row * sound.token_embedding.columns, sound.token_embedding.columns));
  std::fill_n(embedding.begin() + bad * sound.token_embedding.columns, sound.token_embedding.columns,
              std::numeric_limits<float>::quiet_NaN());
  spoilt.token_embedding.data = std::as_bytes(std::span(embedding));
  const tiny_with_draft clean(sound, 0.01f), t(spoilt, 0.01f);
  reference::random_integers random(test_seed());
  std::vector<text> prompts;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(random_prompt(random, 6, 400));
  }
  for (const bool sampled : {false, true}) {
    CAPTURE(sampled);
    const sampling_settings how{.temperature = sampled ? 0.8f : 0.0f, .seed = 3};
    const draft_setup setup{.rows = 4, .most = 3, .sampled = true, .options = one_bucket(4, 3)};
    const int length = test_small() ? 6 : 25;
    std::vector<heard> want(3), got(3);
    heard spoilt_row;
    for (const bool with_nan : {false, true}) {
      step_executor executor = (with_nan ? t : clean).executor(setup);
      executor.capture();
      speculative_loop loop(executor, {.drafts = draft_source::model(), .draft_length = 3});
      for (int i = 0; i < 3; ++i) {
        sampling_settings own = how;
        own.request = 100 + i;
        submit(loop, prompts[i], length, with_nan ? got[i] : want[i], own);
      }
      if (with_nan) submit(loop, {1, 2, 3, bad}, length, spoilt_row, how);
      loop.run();
    }
    CHECK(spoilt_row.tokens.empty());
    CHECK(spoilt_row.end.reason == finish_reason::fault);
    CHECK(spoilt_row.end.status == row_status::nan_logits);
    for (int i = 0; i < 3; ++i) {
      // a text that itself comes by the bad token ends there
      const auto met = std::ranges::find(want[i].tokens, bad) - want[i].tokens.begin();
      const auto kept = std::min<std::ptrdiff_t>(met + 1, std::ssize(want[i].tokens));
      CHECK(got[i].tokens == text(want[i].tokens.begin(), want[i].tokens.begin() + kept));
    }
  }
}

TEST_CASE("a draft whose logits are NaN costs drafts, not texts") {
  const llama::llama_weights target = llama::make_tiny_weights(7, llama::tiny_config());
  const tiny_with_draft t(target, noisy_weights(target, std::numeric_limits<float>::quiet_NaN(), 1));
  const auto all = some_wanted(4, test_small() ? 5 : 20, test_seed());
  step_executor without = t.executor(draft_setup{.rows = 4, .most = 2, .sampled = true, .draft = false});
  step_executor with = t.executor(draft_setup{.rows = 4, .most = 2, .sampled = true});
  without.capture();
  with.capture();
  const std::vector<text> want = texts_of(without, all, {});
  speculative_loop loop(with, {.drafts = draft_source::model(), .draft_length = 2});
  std::vector<heard> got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    submit(loop, all[i].prompt, all[i].length, got[i], all[i].sampling);
  loop.run();
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(got[i].tokens == want[i]);
  CHECK(loop.statistics().accepted == 0);
  REQUIRE(with.fault());
  CHECK(with.fault()->status == static_cast<std::int32_t>(row_status::nan_logits));
}
