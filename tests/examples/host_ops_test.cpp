#include "examples/llama/host_ops.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "graphs/error.hpp"

namespace {

using namespace stepgraph;
using namespace stepgraph::llama;

std::vector<float> random_floats(std::size_t count, float size, std::mt19937_64& random) {
  std::vector<float> values(count);
  std::normal_distribution<float> normal(0, size);
  for (float& value : values) value = normal(random);
  return values;
}

TEST_CASE("host_ops: exponential is within 1e-6 over its whole range") {
  std::vector<float> x;
  for (int i = -870000; i <= 880000; i += 7) x.push_back(static_cast<float>(i) * 1e-4f);
  for (float tiny : {0.0f, -0.0f, 1e-30f, -1e-8f}) x.push_back(tiny);
  std::vector<float> y(x.size());
  exponential(x, y);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(y[i] - want) / want);
  }
  INFO("worst ", worst);
  CHECK(worst < 1e-6);
  MESSAGE("worst relative error of exponential: ", worst);
  x = {-1000.0f, -INFINITY, 1000.0f, INFINITY, NAN};
  y.resize(x.size());
  exponential(x, y);
  CHECK((y[0] > 0 && y[0] < 1e-37f && y[1] == y[0]));
  CHECK((y[2] > 1e38f && std::isfinite(y[2]) && y[3] == y[2]));
  CHECK(std::isnan(y[4]));
}

TEST_CASE("host_ops: silu_multiply, rms_norm and add are what their formulas say") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  for (const std::size_t size : {1, 7, 16, 31, 576, 1536}) {
    CAPTURE(size);
    const std::vector<float> a = random_floats(size, 4, random);
    const std::vector<float> b = random_floats(size, 1, random);
    std::vector<float> out(size);

    silu_multiply(a, b, out);
    for (std::size_t i = 0; i < size; ++i) {
      const double want = a[i] / (1 + std::exp(-static_cast<double>(a[i]))) * b[i];
      CHECK(std::abs(out[i] - want) <= 2e-6 * std::abs(want));
    }
    std::vector<float> in_place = a;
    silu_multiply(in_place, b, in_place);
    CHECK(in_place == out);

    rms_norm(a, b, 1e-5f, out);
    double squares = 0;
    for (const float value : a) squares += static_cast<double>(value) * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(size) + 1e-5);
    for (std::size_t i = 0; i < size; ++i) {
      CHECK(std::abs(out[i] - a[i] * scale * b[i]) <= 2e-6 * std::abs(a[i] * scale * b[i]));
    }
    in_place = a;
    rms_norm(in_place, b, 1e-5f, in_place);
    CHECK(in_place == out);

    in_place = a;
    add(in_place, b);
    for (std::size_t i = 0; i < size; ++i) CHECK(in_place[i] == a[i] + b[i]);
  }
}

TEST_CASE("host_ops: silu_multiply of very large gates is the gate or next to nothing") {
  const std::vector<float> gate{-1e30f, -1000, -90, 90, 1000, 1e30f};
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> out(gate.size());
  silu_multiply(gate, up, out);
  CHECK(std::abs(out[1]) < 1e-34f);
  CHECK(std::abs(out[2]) < 1e-35f);
  for (std::size_t i = 3; i < gate.size(); ++i) CHECK(out[i] == gate[i]);
}

TEST_CASE("host_ops: rope turns neighbouring pairs by position * base^(-2i / head_size)") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  for (const int head_size : {2, 16, 64, 128}) {
    const rope_table table(700, head_size, 100000.0f);
    for (const int position : {0, 1, 63, 699}) {
      CAPTURE(head_size);
      CAPTURE(position);
      const auto size = static_cast<std::size_t>(head_size);
      const std::vector<float> before = random_floats(3 * size, 1, random);
      std::vector<float> after = before;
      rope(after, table, position);
      for (std::size_t at = 0; at < before.size(); at += 2) {
        const double angle = position * std::pow(100000.0, -static_cast<double>(at % size) / head_size);
        CHECK(after[at] == doctest::Approx(before[at] * std::cos(angle) - before[at + 1] * std::sin(angle))
                               .epsilon(1e-6)
                               .scale(1));
        CHECK(after[at + 1] ==
              doctest::Approx(before[at] * std::sin(angle) + before[at + 1] * std::cos(angle))
                  .epsilon(1e-6)
                  .scale(1));
      }
      if (position == 0) CHECK(after == before);
    }
  }
}

TEST_CASE("host_ops: shapes that do not match are refused") {
  std::vector<float> four(4);
  std::vector<float> five(5);
  const rope_table table(10, 4, 10000.0f);
  CHECK_THROWS_AS(rms_norm(four, five, 1e-5f, four), invalid_argument);
  CHECK_THROWS_AS(rms_norm({}, {}, 1e-5f, {}), invalid_argument);
  CHECK_THROWS_AS(silu_multiply(four, four, five), invalid_argument);
  CHECK_THROWS_AS(add(four, five), invalid_argument);
  CHECK_THROWS_AS(exponential(four, five), invalid_argument);
  CHECK_THROWS_AS(rope(five, table, 1), invalid_argument);
  CHECK_THROWS_AS(rope(four, table, 10), invalid_argument);
  CHECK_THROWS_AS(rope(four, table, -1), invalid_argument);
  CHECK_THROWS_AS(rope_table(10, 5, 10000.0f), invalid_argument);
}

}  // namespace
