// The largest logits that the example's output heads keep, each against plain loops over all of them. Entries are small
// integers, so that every sum is exact and ties abound. They exist on the GPU alone.
#include <doctest/doctest.h>

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
  std::vector<std::int32_t> want;  // -1 where a logit is NaN

  head_case(reference::random_integers& random, int rows, int columns, int tokens, int poisoned)
      : rows(rows),
        columns(columns),
        tokens(tokens),
        weight(std::size_t(rows) * columns),
        x(std::size_t(tokens) * columns) {
    for (float& value : weight) value = static_cast<float>(random.between(-2, 2));
    for (float& value : x) value = static_cast<float>(random.between(-1, 1));
    for (int token = 0; token < tokens; ++token) {
      if (token % 11 == 7 && poisoned)
        x[std::size_t(token) * columns + token % columns] = std::numeric_limits<float>::quiet_NaN();
      double most = -std::numeric_limits<double>::infinity();
      std::int32_t best = 0;
      bool nan = false;
      for (int row = 0; row < rows; ++row) {
        double sum = 0;
        for (int column = 0; column < columns; ++column)
          sum +=
              double(weight[std::size_t(row) * columns + column]) * x[std::size_t(token) * columns + column];
        nan |= sum != sum;
        if (sum > most) {
          most = sum;
          best = row;
        }
      }
      want.push_back(nan ? -1 : best);
    }
  }
};

device_vector<bf16> as_bf16(stream_ref at, const std::vector<float>& values) {
  std::vector<bf16> out;
  for (const float value : values) out.push_back(from_float<bf16>(value));
  return {at, out};
}

std::vector<std::int32_t> tokens_of(const std::vector<std::uint64_t>& ranked, int count) {
  std::vector<std::int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(token_of_ranked(ranked[i]));
  return out;
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
  std::vector<shape> shapes{{1, 64, 1}, {130, 64, 70}, {1000, 576, 129}, {127, 128, 320}, {20000, 64, 200}};
  if (test_small()) shapes = {{130, 64, 70}, {300, 128, 130}};
  for (const auto& [rows, columns, tokens] : shapes) {
    CAPTURE(rows);
    CAPTURE(columns);
    CAPTURE(tokens);
    const head_case in(random, rows, columns, tokens, 1);
    const device_vector<bf16> weight = as_bf16(at, in.weight), x = as_bf16(at, in.x);
    // what lies behind the lines stays as it was; line 0 holds a number that only a larger one replaces
    std::vector<std::uint64_t> start(std::size_t(tokens) + 8, 0);
    for (int i = tokens; i < tokens + 8; ++i) start[i] = 77;
    start[0] = ranked_logit(1e9f, 123456);
    const device_vector<std::uint64_t> ranked(at, start);
    llama::multiply(at.ref(), {.weight = weight.data(),
                               .rows = rows,
                               .columns = columns,
                               .x = x.data(),
                               .tokens = tokens,
                               .ranked = ranked.data()});
    const std::vector<std::uint64_t> got = ranked.get();
    std::vector<std::int32_t> want = in.want;
    want[0] = 123456;
    CHECK(tokens_of(got, tokens) == want);
    for (int i = tokens; i < tokens + 8; ++i) CHECK(got[i] == 77);
  }
  CHECK_FALSE(llama::serves(test_device(), 4096, 320));
  CHECK_THROWS_WITH_AS(llama::multiply(at.ref(), {.rows = 10, .columns = 96, .tokens = 70}),
                       doctest::Contains("96 columns"), invalid_argument);
}
