// The largest logits that the example's output heads keep, each against plain loops over all of them. Entries are small
// integers, so that every sum is exact and ties abound. They exist on the GPU alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "examples/llama/ranked_head.hpp"
#include "graphs/error.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

struct head_case {
  int rows, columns, tokens;
  std::vector<float> weight, x;
  std::vector<std::uint64_t> want;  // of each token

  /// `range`: the smaller, the more ties; 0: the logits ascend with the row. `spoilt`: some tokens hold a NaN, and two
  /// rows of the weights do for every token.
  head_case(reference::random_integers& random, int rows, int columns, int tokens, int range, bool spoilt)
      : rows(rows),
        columns(columns),
        tokens(tokens),
        weight(std::size_t(rows) * columns),
        x(std::size_t(tokens) * columns) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (range == 0) {
      for (int row = 0; row < rows; ++row) {
        weight[std::size_t(row) * columns] = static_cast<float>(row / 256);
        weight[std::size_t(row) * columns + 1] = static_cast<float>(row % 256);
      }
      for (int token = 0; token < tokens; ++token) {
        x[std::size_t(token) * columns] = 256;
        x[std::size_t(token) * columns + 1] = 1;
      }
    } else {
      for (float& value : weight) value = static_cast<float>(random.between(-range, range));
      for (float& value : x) value = static_cast<float>(random.between(-range / 2, range / 2));
    }
    if (spoilt)
      for (const int row : {rows - 1, rows / 3}) weight[std::size_t(row) * columns + row % columns] = nan;
    for (int token = 0; token < tokens; ++token) {
      if (token % 11 == 7 && spoilt) x[std::size_t(token) * columns + token % columns] = nan;
      double most = -std::numeric_limits<double>::infinity();
      int best = 0, first_nan = -1;
      for (int row = 0; row < rows; ++row) {
        double sum = 0;
        for (int column = 0; column < columns; ++column)
          sum +=
              double(weight[std::size_t(row) * columns + column]) * x[std::size_t(token) * columns + column];
        if (sum != sum && first_nan < 0) first_nan = row;
        if (sum > most) {
          most = sum;
          best = row;
        }
      }
      want.push_back(first_nan >= 0 ? ranked_logit(nan, first_nan) : ranked_logit(float(most), best));
    }
  }
};

device_vector<bf16> as_bf16(stream_ref at, const std::vector<float>& values) {
  std::vector<bf16> out;
  for (const float value : values) out.push_back(from_float<bf16>(value));
  return {at, out};
}

}  // namespace

TEST_CASE(
    "ranked head: the largest logit of each token of a large step, the lowest id on a tie, a NaN by name") {
  if (test_device().is_host() || !llama::serves(test_device(), 576, 320)) {
    MESSAGE("the head runs on Hopper alone: skipped");
    return;
  }
  const stream at(test_device());
  reference::random_integers random(test_seed());
  struct shape {
    int rows, columns, tokens;
  };
  std::vector<shape> shapes{
      {1, 64, 1},     {130, 64, 70},   {1000, 576, 129}, {127, 128, 320},  {20000, 64, 200}, {20000, 576, 5},
      {777, 576, 40}, {9000, 128, 64}, {25000, 64, 161}, {3000, 576, 160}, {64, 1024, 8},    {9000, 64, 321},
      {8448, 64, 32}, {8449, 64, 33},  {1200, 1024, 40}, {25344, 64, 160}, {50688, 64, 8},   {33856, 64, 64}};
  if (test_small()) shapes = {{130, 64, 70}, {300, 128, 130}, {17100, 64, 3}, {500, 64, 30}, {25344, 64, 2}};
  for (const auto& [rows, columns, tokens] : shapes)
    for (const int kind : {0, 1, 2, 3}) {
      // many ties, few, NaNs, ever larger logits
      const bool spoilt = kind == 2;
      CAPTURE(kind);
      CAPTURE(rows);
      CAPTURE(columns);
      CAPTURE(tokens);
      const head_case in(random, rows, columns, tokens, kind == 1 ? 120 : kind == 3 ? 0 : 2, spoilt);
      const device_vector<bf16> weight = as_bf16(at, in.weight), x = as_bf16(at, in.x);
      // a line of its own, the other way round; two tokens share one
      std::vector<std::int32_t> lines(tokens);
      for (int token = 0; token < tokens; ++token) lines[token] = spoilt ? tokens - 1 - token : token;
      if (spoilt && tokens > 2) lines[2] = lines[1];
      const device_vector<std::int32_t> line(at, lines);
      // what lies behind the lines stays as it was; line 0 holds a number that only a larger one replaces
      std::vector<std::uint64_t> want(std::size_t(tokens) + 8, 0);
      for (int i = tokens; i < tokens + 8; ++i) want[i] = 77;
      want[0] = ranked_logit(1e9f, 123456);
      const device_vector<std::uint64_t> ranked(at, want);
      llama::multiply(at.ref(), {.weight = weight.data(),
                                 .rows = rows,
                                 .columns = columns,
                                 .x = x.data(),
                                 .tokens = tokens,
                                 .ranked = ranked.data(),
                                 .line = spoilt ? line.data() : nullptr});
      for (int token = 0; token < tokens; ++token)
        want[lines[token]] = std::max(want[lines[token]], in.want[token]);
      CHECK(ranked.get() == want);
    }
  CHECK_FALSE(llama::serves(test_device(), 2048, 8));
  CHECK_THROWS_WITH_AS(llama::multiply(at.ref(), {.rows = 10, .columns = 96, .tokens = 70}),
                       doctest::Contains("96 columns"), invalid_argument);
}

TEST_CASE(
    "ranked head: a token's number has the same bits whatever tokens ride along, in any order of lines") {
  if (test_device().is_host() || !llama::serves(test_device(), 576, 320)) {
    MESSAGE("the head runs on Hopper alone: skipped");
    return;
  }
  const stream at(test_device());
  reference::random_integers random(test_seed());
  const int rows = test_small() ? 400 : 9000, columns = test_small() ? 64 : 576, most = 320;
  std::vector<float> weights(std::size_t(rows) * columns), states(std::size_t(most) * columns);
  for (std::vector<float>* const values : {&weights, &states})
    for (float& value : *values) value = float(random.between(-10000, 10000)) * 1e-4f;
  const device_vector<bf16> weight = as_bf16(at, weights), x = as_bf16(at, states);
  std::vector<std::int32_t> backwards(most);
  for (int i = 0; i < most; ++i) backwards[i] = most - 1 - i;
  const device_vector<std::int32_t> source(at, backwards);
  std::vector<std::uint64_t> all;
  for (const int tokens : {most, 1, 8, 31, 64, 100, 160, 161}) {
    CAPTURE(tokens);
    const device_vector<std::uint64_t> ranked(at, tokens, 0);
    llama::multiply(at.ref(), {.weight = weight.data(),
                               .rows = rows,
                               .columns = columns,
                               .x = x.data(),
                               .tokens = tokens,
                               .source = source.data(),
                               .ranked = ranked.data()});
    const std::vector<std::uint64_t> got = ranked.get();
    if (all.empty()) all = got;
    CHECK(std::equal(got.begin(), got.end(), all.begin()));
  }
}
