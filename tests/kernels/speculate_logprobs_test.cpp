// The log-probabilities of what a greedy step emits, against plain loops in double.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "kernels/sample/greedy_sample.hpp"
#include "kernels/sample/target_distribution.hpp"
#include "kernels/speculate/greedy_logprobs.hpp"
#include "kernels/speculate/rejection_accept.hpp"
#include "tests/kernels/rejection_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN(), unwritten = 7.0f;

/// The lines of a step: logits, masks, and what each line's argmax is by a plain loop.
struct some_lines {
  int vocab;
  bool masked;
  std::vector<float> logits;
  std::vector<std::uint32_t> words;
  std::vector<std::optional<std::int64_t>> argmax;

  int word_count() const { return (vocab + 31) / 32; }
  std::vector<float> line(int i) const {
    const auto begin = logits.begin() + static_cast<std::size_t>(i) * vocab;
    return {begin, begin + vocab};
  }
  std::vector<bool> allowed(int i) const {
    std::vector<bool> out;
    for (int v = 0; masked && v < vocab; ++v)
      out.push_back(words[static_cast<std::size_t>(i) * word_count() + v / 32] >> (v % 32) & 1);
    return out;
  }
};

/// Lines of which only the first `live` may be read. Some have ties, one in eight a NaN, one in eight an empty mask.
some_lines random_lines(reference::random_integers& random, int lines, int live, int vocab, bool masked) {
  some_lines out{.vocab = vocab, .masked = masked, .logits = {}, .words = {}, .argmax = {}};
  for (int i = 0; i < lines; ++i) {
    const bool dead = i >= live, ties = random.one_in(2), empty = masked && random.one_in(8);
    for (int v = 0; v < vocab; ++v)
      out.logits.push_back(dead   ? nan_value
                           : ties ? static_cast<float>(random.between(-3, 3))
                                  : static_cast<float>(random.between(-900000, 900000)) * 1e-5f);
    for (int w = 0; w < out.word_count(); ++w)
      out.words.push_back(empty ? 0u
                                : static_cast<std::uint32_t>(random.below(1ll << 32)) | (w == 0 ? 1u : 0u));
    if (!dead && random.one_in(8)) out.logits[static_cast<std::size_t>(i) * vocab] = nan_value;
    std::optional<std::int64_t> best;
    const auto line = out.line(i);
    const auto allowed = out.allowed(i);
    bool nan = false;
    for (int v = 0; v < vocab; ++v) {
      if (masked && !allowed[v]) continue;
      nan = nan || std::isnan(line[v]);
      if (!best || line[v] > line[*best]) best = v;
    }
    out.argmax.push_back(nan ? std::nullopt : best);
  }
  return out;
}

struct device_lines {
  device_lines(stream_ref at, const some_lines& in)
      : logits(at, in.logits), words(at, in.words), argmax(at, in.argmax.size(), wild) {}
  device_vector<float> logits;
  device_vector<std::uint32_t> words;
  device_vector<std::int32_t> argmax;
};

void check_entry(const some_lines& in, int line, std::int64_t token, float logprob, float unfiltered) {
  CHECK(logprob == 0.0f);
  CHECK(unfiltered ==
        doctest::Approx(reference::unfiltered_logprob(in.line(line), in.allowed(line), token)).epsilon(1e-4));
}

}  // namespace

TEST_CASE("logprobs of a greedy plain step: every live row's, 0 without a token, dead rows untouched") {
  const stream at(test_device());
  reference::random_integers random(test_seed());
  for (const int vocab : {1, 2, 31, 33, 1000, 5003})
    for (const bool masked : {false, true}) {
      const int rows = 7, live = static_cast<int>(random.between(0, rows));
      CAPTURE(vocab);
      CAPTURE(masked);
      const some_lines in = random_lines(random, rows, live, vocab, masked);
      device_lines there(at, in);
      std::vector<std::int32_t> counts(rows, 1);
      if (live > 2) counts[1] = 0;
      const device_vector<std::int32_t> n(at, {live}), query_counts(at, counts);
      const device_vector<float> logprobs(at, rows + 2, unwritten), unfiltered(at, rows + 2, unwritten);
      const allowed_view allowed{.words = masked ? there.words.data() : nullptr, .stride = in.word_count()};
      greedy_sample(at, {.logits = there.logits.data(),
                         .logits_stride = vocab,
                         .rows = rows,
                         .vocab_size = vocab,
                         .live_rows = n.data(),
                         .query_counts = query_counts.data(),
                         .allowed = allowed,
                         .next_token = there.argmax.data()});
      greedy_logprobs(at, {.logits = there.logits.data(),
                           .logits_stride = vocab,
                           .lines = rows,
                           .vocab_size = vocab,
                           .live_lines = n.data(),
                           .allowed = allowed,
                           .argmax = there.argmax.data(),
                           .logprobs = logprobs.data(),
                           .unfiltered_logprobs = unfiltered.data()});
      const auto got = logprobs.get(), raw = unfiltered.get();
      for (int row = 0; row < rows + 2; ++row) {
        if (row >= live) {
          CHECK(got[row] == unwritten);
          CHECK(raw[row] == unwritten);
        } else if (counts[row] == 0 || !in.argmax[row]) {
          CHECK(got[row] == 0.0f);
          CHECK(raw[row] == 0.0f);
        } else {
          check_entry(in, row, *in.argmax[row], got[row], raw[row]);
        }
      }
    }
}

TEST_CASE(
    "logprobs of a greedy verify step, chains and trees: one a token that the accept emits, nothing else") {
  const stream at(test_device());
  reference::random_integers random(test_seed() + 1);
  int emitted_drafts = 0;
  for (int round = 0; round < (test_small() ? 8 : 40); ++round) {
    const bool chain = round % 2 == 0, masked = round % 3 == 0;
    const int vocab = round % 8 == 7 ? 5003 : 3, rows = 5, most = round % 5 == 4 ? 64 : 7,
              live = static_cast<int>(random.between(0, rows));
    CAPTURE(round);
    verify_case step = random_verify_case(random, rows, live, most, 3, chain);
    const some_lines in = random_lines(random, step.tokens, step.live_tokens(), vocab, masked);
    // drafts that the target agrees with now and then, the lowest of equal siblings counts
    for (int row = 0; row < live; ++row)
      for (int node = 1; node < step.nodes(row); ++node)
        if (const auto best = in.argmax[step.cu[row] + step.trees[row].parents[node]];
            best && !random.one_in(3))
          step.trees[row].tokens[node] = *best;
    const device_verify view(at, step, !chain);
    device_lines there(at, in);
    std::vector<std::int32_t> row_of(step.tokens, wild), argmax(step.tokens, wild);
    for (int row = 0; row < live; ++row)
      for (int node = 0; node < step.nodes(row); ++node) row_of[step.cu[row] + node] = row;
    for (int t = 0; t < step.live_tokens(); ++t)
      argmax[t] = in.argmax[t] ? static_cast<std::int32_t>(*in.argmax[t]) : -1 - (t % 2);
    there.argmax.set(argmax);
    const std::size_t places = static_cast<std::size_t>(rows) * most;
    const device_vector<std::int32_t> device_row_of(at, row_of);
    const device_vector<float> logprobs(at, places + 2, unwritten), unfiltered(at, places + 2, unwritten);
    greedy_logprobs(at,
                    {.logits = there.logits.data(),
                     .logits_stride = vocab,
                     .lines = step.tokens,
                     .vocab_size = vocab,
                     .live_lines = view.live_tokens(),
                     .allowed = {.words = masked ? there.words.data() : nullptr, .stride = in.word_count()},
                     .argmax = there.argmax.data(),
                     .verify = view.view,
                     .row_of = device_row_of.data(),
                     .logprobs = logprobs.data(),
                     .unfiltered_logprobs = unfiltered.data(),
                     .stride = most});
    const auto got = logprobs.get(), raw = unfiltered.get();
    std::vector<bool> written(places + 2, false);
    for (int row = 0; row < live; ++row) {
      if (step.nodes(row) == 0) continue;
      const auto first = in.argmax.begin() + step.cu[row];
      const auto want = reference::greedy_accept(step.trees[row], {first, first + step.nodes(row)});
      for (std::size_t i = 0; i < want.emitted.size(); ++i) {
        const std::size_t place = static_cast<std::size_t>(row) * most + i;
        written[place] = true;
        check_entry(in, step.cu[row] + static_cast<int>(want.path[i]), want.emitted[i], got[place],
                    raw[place]);
        emitted_drafts += i > 0;
      }
    }
    for (std::size_t place = 0; place < written.size(); ++place)
      if (!written[place]) CHECK((got[place] == unwritten && raw[place] == unwritten));
  }
  CHECK((emitted_drafts > 0 || test_small()));
}

TEST_CASE("one of the logprobs may be asked for alone; infinite logits share the probability") {
  const stream at(test_device());
  const float inf = std::numeric_limits<float>::infinity();
  const device_vector<float> logits(at, {inf, 0, inf, -inf, -inf, -inf});
  const device_vector<std::int32_t> n(at, {2}), argmax(at, {0, 0});
  const device_vector<float> out(at, 2, unwritten);
  greedy_logprobs_params params{.logits = logits.data(),
                                .logits_stride = 3,
                                .lines = 2,
                                .vocab_size = 3,
                                .live_lines = n.data(),
                                .argmax = argmax.data(),
                                .unfiltered_logprobs = out.data()};
  const graph made = capture(at, [&](stream_ref s) { greedy_logprobs(s, params); });
  CHECK(made.node_count() == 1);
  greedy_logprobs(at, params);
  const auto raw = out.get();
  CHECK(raw[0] == doctest::Approx(std::log(0.5)));
  CHECK(raw[1] == doctest::Approx(std::log(1.0 / 3)));
  params.logprobs = params.unfiltered_logprobs;
  params.unfiltered_logprobs = nullptr;
  greedy_logprobs(at, params);
  CHECK(out.get() == std::vector<float>{0, 0});
}

TEST_CASE("logprobs that cannot be are refused by name") {
  const stream at(test_device());
  rejection_case in = random_rejection(test_seed() + 2, 2, 2, 4, 5, true, false);
  rejection_run run(at, in, nullptr);
  run.accept.with_unfiltered = false;
  CHECK_THROWS_WITH_AS(rejection_accept(at, run.accept),
                       doctest::Contains("unfiltered_logprobs needs distributions made with with_unfiltered"),
                       invalid_argument);
  run.accept.unfiltered_logprobs = nullptr;
  CHECK_NOTHROW(check(run.accept));

  float number = 0;
  std::int32_t word = 0;
  const greedy_logprobs_params good{.logits = &number,
                                    .logits_stride = 8,
                                    .lines = 2,
                                    .vocab_size = 8,
                                    .live_lines = &word,
                                    .argmax = &word,
                                    .verify = {.live_rows = &word,
                                               .rows = 2,
                                               .max_query_count = 2,
                                               .cu_seqlens_q = &word,
                                               .token_ids = &word},
                                    .row_of = &word,
                                    .logprobs = &number,
                                    .stride = 2};
  CHECK_NOTHROW(check(good));
  const auto refused = [&](auto change, const char* why) {
    greedy_logprobs_params bad = good;
    change(bad);
    CHECK_THROWS_WITH_AS(greedy_logprobs(at, bad), doctest::Contains(why), invalid_argument);
  };
  refused([](auto& p) { p.logits = nullptr; }, "logits is null");
  refused([](auto& p) { p.live_lines = nullptr; }, "live_lines is null");
  refused([](auto& p) { p.argmax = nullptr; }, "argmax is null");
  refused([](auto& p) { p.row_of = nullptr; }, "row_of is null");
  refused([](auto& p) { p.verify.token_ids = nullptr; }, "verify.token_ids is null");
  refused([](auto& p) { p.verify.cu_seqlens_q = nullptr; }, "verify.cu_seqlens_q is null");
  refused([](auto& p) { p.logprobs = nullptr; }, "logprobs and unfiltered_logprobs are null");
  refused([](auto& p) { p.stride = 1; }, "stride 1 is less than max_query_count 2");
  refused([](auto& p) { p.lines = 0; }, "lines must be positive, got 0");
  refused([](auto& p) { p.logits_stride = 7; }, "logits_stride 7 is less than vocab_size 8");
}

TEST_CASE(
    "distributions made without unfiltered totals give NaN, never a number, where the caller says "
    "otherwise") {
  const stream at(test_device());
  rejection_case in = random_rejection(test_seed() + 3, 3, 3, 4, 5, true, false);
  for (auto& tree : in.step.trees) tree = {{-1}, {0}};
  in.step = make_verify_case(3, 4, in.step.trees, 2);
  in.logits.assign(static_cast<std::size_t>(in.step.tokens) * in.vocab, 0.5f);
  in.position.assign(in.step.tokens, 3);
  rejection_run run(at, in, nullptr);
  run.target.with_unfiltered = false;
  run.enqueue(at);
  const auto raw = run.unfiltered_logprobs();
  for (int row = 0; row < 3; ++row) CHECK(std::isnan(raw[static_cast<std::size_t>(row) * 4]));
}
