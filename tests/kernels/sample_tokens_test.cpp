#include "kernels/sample/sample_tokens.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/reference/philox.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/reference/sampling.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite = std::numeric_limits<float>::infinity();

struct sampled {
  std::vector<std::int32_t> tokens;
  std::vector<float> probabilities, logprobs, unfiltered;
};

struct sample_case {
  int rows = 1, vocab = 8, live = 1;
  std::vector<float> logits{};                // [rows, vocab]
  std::vector<sampling_settings> settings{};  // [rows]
  std::vector<std::uint32_t> allowed{};       // [rows, words] or empty
  std::vector<std::int32_t> position{};       // [rows]
  draw_purpose purpose = draw_purpose::bonus_draw;
  int node = 0;
};

sampled run(const sample_case& in, fault_fixture* faults = nullptr) {
  const stream at(test_device());
  const int stride = in.vocab + 5, words = (in.vocab + 31) / 32;
  std::vector<float> padded(static_cast<std::size_t>(in.rows) * stride, nan_value);
  for (int r = 0; r < in.rows; ++r)
    std::copy_n(in.logits.begin() + static_cast<std::size_t>(r) * in.vocab, in.vocab,
                padded.begin() + static_cast<std::size_t>(r) * stride);
  device_vector<float> logits(at, padded), probabilities(at, padded.size(), -7.0f),
      logprobs(at, in.rows, -7.0f), unfiltered(at, in.rows, -7.0f);
  device_vector<sampling_settings> settings(at, in.settings);
  device_vector<std::uint32_t> allowed(at, in.allowed.empty() ? std::vector<std::uint32_t>{0} : in.allowed);
  device_vector<std::int32_t> n(at, {in.live}), position(at, in.position), tokens(at, in.rows, -99);
  sample_tokens(at, {.logits = logits.data(),
                     .logits_stride = stride,
                     .rows = in.rows,
                     .vocab_size = in.vocab,
                     .live_rows = n.data(),
                     .sampling = {.settings = settings.data(), .requests = {}, .count = in.rows},
                     .allowed = {.words = in.allowed.empty() ? nullptr : allowed.data(), .stride = words},
                     .position = position.data(),
                     .purpose = in.purpose,
                     .node = in.node,
                     .next_token = tokens.data(),
                     .probabilities = probabilities.data(),
                     .probabilities_stride = stride,
                     .logprobs = logprobs.data(),
                     .unfiltered_logprobs = unfiltered.data(),
                     .faults = faults ? faults->sink() : fault_sink{}});
  const auto wide = probabilities.get();
  sampled out{tokens.get(), {}, logprobs.get(), unfiltered.get()};
  for (int r = 0; r < in.rows; ++r) {
    for (int v = 0; v < in.vocab; ++v)
      out.probabilities.push_back(wide[static_cast<std::size_t>(r) * stride + v]);
    for (int v = in.vocab; v < stride; ++v) CHECK(wide[static_cast<std::size_t>(r) * stride + v] == -7.0f);
  }
  return out;
}

std::vector<bool> allowed_of(const sample_case& in, int row) {
  std::vector<bool> out;
  if (in.allowed.empty()) return out;
  for (int v = 0; v < in.vocab; ++v)
    out.push_back(in.allowed[static_cast<std::size_t>(row) * ((in.vocab + 31) / 32) + v / 32] >> (v % 32) &
                  1);
  return out;
}

reference::target target_of(const sample_case& in, int row) {
  const auto begin = in.logits.begin() + static_cast<std::size_t>(row) * in.vocab;
  const sampling_settings& s = in.settings[row];
  return reference::target_distribution({begin, begin + in.vocab}, {s.temperature, s.top_k, s.top_p, s.min_p},
                                        allowed_of(in, row));
}

sample_case random_case(std::uint64_t seed, int vocab, int rows, bool masked) {
  reference::random_integers random(seed);
  sample_case in{.rows = rows, .vocab = vocab, .live = static_cast<int>(random.between(0, rows))};
  for (int r = 0; r < rows; ++r) {
    const bool ties = random.one_in(2);
    for (int v = 0; v < vocab; ++v)
      in.logits.push_back(r >= in.live ? nan_value
                          : ties       ? static_cast<float>(random.between(-6, 6))
                                       : static_cast<float>(random.between(-900000, 900000)) * 1e-5f);
    const float temperatures[] = {0.0f, 0.5f, 1.0f, 1.7f};
    const std::int32_t top_ks[] = {0, -1,    1,         2,
                                   7, vocab, vocab + 3, static_cast<std::int32_t>(random.between(1, vocab))};
    const float top_ps[] = {1.0f, 2.0f, 0.9f, 0.37f, 0.0f};
    const float min_ps[] = {0.0f, -1.0f, 0.05f, 0.4f, 1.0f};
    in.settings.push_back({.temperature = temperatures[random.below(4)],
                           .top_k = top_ks[random.below(8)],
                           .top_p = top_ps[random.below(5)],
                           .min_p = min_ps[random.below(5)],
                           .seed = static_cast<std::uint64_t>(random.below(INT64_MAX)),
                           .request = static_cast<std::uint64_t>(random.below(INT64_MAX))});
    in.position.push_back(static_cast<std::int32_t>(random.below(100000)));
    for (int w = 0; masked && w < (vocab + 31) / 32; ++w)
      in.allowed.push_back(static_cast<std::uint32_t>(random.below(1ll << 32)) | (w == 0 ? 1u : 0u));
  }
  return in;
}

void compare(const sample_case& in) {
  const sampled got = run(in);
  for (int r = 0; r < in.rows; ++r) {
    CAPTURE(r);
    if (r >= in.live) {
      CHECK(got.tokens[r] == 0);
      CHECK(got.probabilities[static_cast<std::size_t>(r) * in.vocab] == -7.0f);
      continue;
    }
    const reference::target want = target_of(in, r);
    if (want.margin < 1e-5) continue;  // within rounding of another answer
    bool equal = true;
    for (int v = 0; v < in.vocab; ++v) {
      const float p = got.probabilities[static_cast<std::size_t>(r) * in.vocab + v];
      equal = equal && (p > 0) == (want.p[v] > 0) && std::fabs(p - want.p[v]) <= 2e-6 + 2e-5 * want.p[v];
    }
    CHECK_MESSAGE(equal, "row ", r, " of a vocabulary of ", in.vocab);
    const double u = reference::uniform(in.settings[r].seed, in.settings[r].request, in.position[r],
                                        static_cast<std::uint32_t>(in.purpose), in.node);
    const reference::drawn token = reference::draw(want.p, u);
    if (token.margin < 1e-5 && in.settings[r].temperature > 0 && in.settings[r].top_k != 1) continue;
    CHECK(got.tokens[r] == token.id);
    CHECK(got.logprobs[r] == doctest::Approx(std::log(want.p[token.id])).epsilon(1e-4));
    const auto begin = in.logits.begin() + static_cast<std::size_t>(r) * in.vocab;
    CHECK(got.unfiltered[r] == doctest::Approx(reference::unfiltered_logprob({begin, begin + in.vocab},
                                                                             allowed_of(in, r), token.id))
                                   .epsilon(1e-4));
  }
}

}  // namespace

TEST_CASE(
    "sampled rows have the target distribution, tokens and logprobs as defined, with ties and greedy rows "
    "among them") {
  int i = 0;
  for (const int vocab : {1, 2, 31, 32, 33, 64, 513, 1000, 5003})
    for (int repeat = 0; repeat < 12; repeat += test_small() ? 5 : 1) {
      sample_case in = random_case(test_seed() + i++, vocab, 9, false);
      in.purpose = repeat % 2 ? draw_purpose::draft_draw : draw_purpose::bonus_draw;
      in.node = repeat % 5;
      compare(in);
    }
}

TEST_CASE("masks of allowed tokens come before everything else") {
  int i = 1000;
  for (const int vocab : {1, 31, 32, 33, 100, 5003})
    for (int repeat = 0; repeat < (test_small() ? 2 : 10); ++repeat)
      compare(random_case(test_seed() + i++, vocab, 7, true));
}

TEST_CASE("a vocabulary of 150,000 is sampled exactly") {
  compare(random_case(test_seed() + 5000, 150000, 6, true));
}

TEST_CASE("same seed, same text: a row's draw and probabilities are its own, whatever stands beside it") {
  for (const int vocab : {300, 5003, 49152}) {
    const sample_case in = [&] {
      sample_case made = random_case(test_seed() + 5500 + vocab, vocab, 9, false);
      made.live = 9;
      reference::random_integers random(test_seed() + vocab);
      for (float& x : made.logits) x = static_cast<float>(random.between(-900000, 900000)) * 1e-5f;
      return made;
    }();
    const sampled all = run(in);
    for (int row = 0; row < 9; row += test_small() && vocab > 1000 ? 4 : 1) {
      const auto begin = static_cast<std::ptrdiff_t>(row) * vocab;
      sample_case one{.rows = 2, .vocab = vocab, .live = 2};
      one.logits.assign(vocab, 0.5f);
      one.logits.insert(one.logits.end(), in.logits.begin() + begin, in.logits.begin() + begin + vocab);
      one.settings = {in.settings[(row + 1) % 9], in.settings[row]};
      one.position = {1, in.position[row]};
      const sampled alone = run(one);
      CHECK(alone.tokens[1] == all.tokens[row]);
      CHECK(std::equal(alone.probabilities.begin() + vocab, alone.probabilities.end(),
                       all.probabilities.begin() + begin));
    }
  }
}

TEST_CASE(
    "where much or little of a long line may stay, and however it is cut, the result is the definition's") {
  reference::random_integers random(test_seed() + 5800);
  for (const int vocab : {4096, 5003, 40000})
    for (int shape = 0; shape < 5; ++shape) {
      if (test_small() && vocab > 5003 && shape != 3) continue;
      sample_case in{.rows = 8, .vocab = vocab, .live = 8};
      for (int r = 0; r < in.rows; ++r) {
        for (int v = 0; v < vocab; ++v) {
          const auto wide = static_cast<float>(random.between(-900000, 900000));
          const float spread[] = {wide * 1e-5f,                     // many may stay
                                  wide * 1e-9f,                     // nearly equal
                                  wide * 1e-4f,                     // few
                                  random.one_in(50) ? 4.0f : 1.0f,  // equals at the cut
                                  random.one_in(3) ? -infinite : wide * 1e-5f};
          in.logits.push_back(spread[shape]);
        }
        const std::int32_t top_ks[] = {0, 50, 1023, 1025, 3000, 1, 0, 256};
        const float top_ps[] = {0.9f, 0.95f, 1.0f, 0.5f, 0.999999f, 1.0f, 1e-9f, 0.3f};
        in.settings.push_back({.temperature = r % 3 == 0 ? 0.3f : 1.0f,
                               .top_k = top_ks[r],
                               .top_p = top_ps[r],
                               .min_p = r == 2 ? 0.2f : 0.0f,
                               .seed = static_cast<std::uint64_t>(random.below(INT64_MAX)),
                               .request = static_cast<std::uint64_t>(r)});
        in.position.push_back(r);
      }
      compare(in);
    }
}

TEST_CASE("every live count from the bucket down leaves dead rows at 0 and reads none of them") {
  for (int live = 6; live >= 0; --live) {
    sample_case in = random_case(test_seed() + 6000 + live, 40, 6, false);
    in.live = live;
    for (float& x : in.logits) x = std::isnan(x) ? 1.0f : x;
    for (int r = live; r < 6; ++r) std::fill_n(in.logits.begin() + r * 40, 40, nan_value);
    compare(in);
  }
}

TEST_CASE(
    "at the edge of top-k and top-p the lower of equal ids stays, and the one that crosses is included") {
  const auto kept = [](std::vector<float> logits, sampling_settings s) {
    sample_case in{
        .vocab = static_cast<int>(logits.size()), .logits = logits, .settings = {s}, .position = {3}};
    std::vector<int> ids;
    const auto p = run(in).probabilities;
    for (std::size_t v = 0; v < p.size(); ++v)
      if (p[v] > 0) ids.push_back(static_cast<int>(v));
    return ids;
  };
  using ids = std::vector<int>;
  const std::vector<float> equal{2, 2, 2, 2};
  CHECK(kept(equal, {.temperature = 1, .top_k = 3}) == ids{0, 1, 2});
  CHECK(kept(equal, {.temperature = 1, .top_p = 0.5f}) == ids{0, 1});
  CHECK(kept(equal, {.temperature = 1, .top_p = 0.50001f}) == ids{0, 1, 2});
  CHECK(kept(equal, {.temperature = 1, .top_k = 2, .top_p = 0.5f}) == ids{0});  // of what top-k left
  CHECK(kept(equal, {.temperature = 1, .top_p = 0.0f}) == ids{0});
  CHECK(kept(equal, {.temperature = 1, .min_p = 1.0f}) == ids{0, 1, 2, 3});
  CHECK(kept({1, 3, 2, 3, 2}, {.temperature = 1, .top_k = 3}) == ids{1, 2, 3});
  CHECK(kept({1, 3, 2, 3, 2}, {.temperature = 1, .top_k = 1}) == ids{1});
  CHECK(kept({0.0f, -0.0f, -1}, {.temperature = 1, .top_k = 1}) == ids{0});
  CHECK(kept({-0.0f, 0.0f, -1}, {.temperature = 1, .top_k = 1}) == ids{0});  // the two zeros are equal
  CHECK(kept({-0.0f, 0.0f, 0.0f, -1}, {.temperature = 1, .top_k = 2}) == ids{0, 1});
  CHECK(kept({0, -infinite, 1}, {.temperature = 1}) == ids{0, 2});
  CHECK(kept({0, infinite, 1, infinite}, {.temperature = 1}) == ids{1, 3});
}

TEST_CASE("coin-one: the token drawn has positive probability, whatever the number and the zeros around it") {
  reference::random_integers random(test_seed() + 7000);
  for (const int vocab : {7, 33, 1000, 20000}) {
    const int rows = test_small() ? 40 : 300;
    sample_case in{.rows = rows, .vocab = vocab, .live = rows};
    for (int r = 0; r < in.rows; ++r) {
      // few ids have any probability, none of them the last
      std::vector<float> line(vocab, -infinite);
      for (int i = 0; i < 3; ++i) line[random.below(vocab - 2)] = static_cast<float>(random.between(-3, 3));
      in.logits.insert(in.logits.end(), line.begin(), line.end());
      in.settings.push_back({.temperature = 1, .seed = static_cast<std::uint64_t>(r), .request = 5});
      in.position.push_back(static_cast<std::int32_t>(random.below(1000)));
    }
    const sampled got = run(in);
    for (int r = 0; r < in.rows; ++r) {
      CHECK(got.tokens[r] >= 0);
      CHECK(got.probabilities[static_cast<std::size_t>(r) * vocab + got.tokens[r]] > 0);
    }
  }
}

TEST_CASE("a NaN logit or an empty mask ends its row with a named status and leaves its neighbours alone") {
  sample_case in{.rows = 4, .vocab = 40, .live = 4};
  in.logits.assign(160, 0.0f);
  in.settings.assign(4, {.temperature = 1, .seed = 11, .request = 12});
  in.position.assign(4, 2);
  in.allowed.assign(8, ~0u);
  const sampled clean = run(in);
  in.logits[40 + 17] = nan_value;
  in.allowed[4] = 0;
  in.allowed[5] = ~0xffu;  // only past the vocabulary
  in.logits[3 * 40 + 39] = nan_value;
  in.allowed[7] = 0x7f;  // which the mask hides
  const stream at(test_device());
  fault_fixture faults(at, 4);  // `run` waits for its own stream
  const sampled got = run(in, &faults);
  CHECK(got.tokens[0] == clean.tokens[0]);
  CHECK(got.tokens[1] == -1);
  CHECK(got.tokens[2] == -1);
  CHECK(got.tokens[3] >= 0);
  CHECK(got.tokens[3] < 39);
  CHECK(faults.statuses() == std::vector<row_status>{row_status::ok, row_status::nan_logits,
                                                     row_status::no_allowed_token, row_status::ok});
}

TEST_CASE("sampling refuses by name what the host can see") {
  const stream at(test_device());
  sample_tokens_params params;
  CHECK_THROWS_WITH_AS(sample_tokens(at, params), doctest::Contains("rows must be positive"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(check(sampling_settings{.temperature = -1}), doctest::Contains("temperature"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(check(sampling_settings{.temperature = nan_value}), doctest::Contains("temperature"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(check(sampling_settings{.top_p = nan_value}), doctest::Contains("top_p"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(check(sampling_settings{.min_p = 1.5f}), doctest::Contains("min_p"), invalid_argument);
  CHECK_NOTHROW(check(sampling_settings{}));
  device_vector<float> logits(at, 64, 0.0f);
  device_vector<std::int32_t> numbers(at, 8, 0);
  device_vector<sampling_settings> settings(at, 2, sampling_settings{});
  params = {.logits = logits.data(),
            .logits_stride = 16,
            .rows = 2,
            .vocab_size = 16,
            .live_rows = numbers.data(),
            .sampling = {.settings = settings.data(), .requests = {}, .count = 2},
            .position = numbers.data(),
            .next_token = numbers.data()};
  CHECK_NOTHROW(check(params));
  const auto refused = [&](auto change, const char* name) {
    auto wrong = params;
    change(wrong);
    CHECK_THROWS_WITH_AS(check(wrong), doctest::Contains(name), invalid_argument);
  };
  refused([](auto& p) { p.logits_stride = 15; }, "logits_stride");
  refused([](auto& p) { p.purpose = draw_purpose::accept_coin; }, "purpose");
  refused([](auto& p) { p.node = 1 << 24; }, "node");
  refused([](auto& p) { p.sampling.count = 0; }, "sampling.count");
  refused(
      [&](auto& p) { p.allowed = {.words = reinterpret_cast<std::uint32_t*>(numbers.data()), .stride = 0}; },
      "allowed.stride");
  refused([&](auto& p) { p.probabilities = logits.data(); }, "probabilities_stride");
}
