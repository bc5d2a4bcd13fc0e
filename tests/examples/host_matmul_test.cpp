#include "examples/llama/host_matmul.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "examples/llama/llama_weights.hpp"
#include "graphs/error.hpp"
#include "graphs/thread_pool.hpp"

namespace {

using namespace stepgraph;
using namespace stepgraph::llama;

constexpr tensor_type all_types[] = {tensor_type::f32,  tensor_type::f16,  tensor_type::bf16,
                                     tensor_type::q4_0, tensor_type::q4_1, tensor_type::q8_0};

std::size_t header_bytes(tensor_type type) {
  return type == tensor_type::q4_1 ? 4 : type == tensor_type::q4_0 || type == tensor_type::q8_0 ? 2 : 0;
}

struct random_matrix {
  std::vector<std::byte> bytes;
  tensor weight;
};

/// Random bytes, with halves (scales, minima, f16 elements) and floats of a usual size.
random_matrix make_matrix(tensor_type type, std::int64_t rows, std::int64_t columns,
                          std::mt19937_64& random) {
  random_matrix made;
  const std::size_t stride = row_bytes(type, columns);
  made.bytes.resize(stride * static_cast<std::size_t>(rows));
  for (std::byte& byte : made.bytes) byte = std::byte(random());
  const auto put_half = [&](std::size_t at) {
    const auto half = static_cast<std::uint16_t>((random() & 0x83ff) | (8 + random() % 8) << 10);
    std::memcpy(&made.bytes[at], &half, sizeof half);
  };
  if (type == tensor_type::f32) {
    for (std::size_t at = 0; at < made.bytes.size(); at += 4) {
      const float value = std::normal_distribution<float>()(random);
      std::memcpy(&made.bytes[at], &value, sizeof value);
    }
  } else if (type == tensor_type::f16) {
    for (std::size_t at = 0; at < made.bytes.size(); at += 2) put_half(at);
  } else if (type == tensor_type::bf16) {
    for (std::size_t at = 0; at < made.bytes.size(); at += 2) {
      const auto top = static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(std::normal_distribution<float>()(random)) >> 16);
      std::memcpy(&made.bytes[at], &top, sizeof top);
    }
  } else {
    for (std::size_t at = 0; at < made.bytes.size(); at += row_bytes(type, 32)) {
      for (std::size_t i = 0; i < header_bytes(type); i += 2) put_half(at + i);
    }
  }
  made.weight = {type, rows, columns, made.bytes};
  return made;
}

std::vector<float> random_floats(std::size_t count, std::mt19937_64& random) {
  std::vector<float> values(count);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<double> multiply_in_double(const tensor& weight, std::span<const float> x) {
  std::vector<double> y;
  std::vector<float> row(static_cast<std::size_t>(weight.columns));
  for (std::int64_t r = 0; r < weight.rows; ++r) {
    dequantize_row(weight, r, row);
    double sum = 0;
    for (std::size_t i = 0; i < row.size(); ++i) sum += static_cast<double>(row[i]) * x[i];
    y.push_back(sum);
  }
  return y;
}

double relative_error(std::span<const float> got, std::span<const double> want) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

std::vector<float> product(const host_matrix& matrix, std::span<const float> x, int tokens,
                           thread_pool& pool) {
  std::vector<float> y(static_cast<std::size_t>(tokens * matrix.rows()), NAN);
  matmul(matrix, x, y, tokens, pool);
  return y;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_CASE("host_matmul: the product is that of the dequantised weights") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  thread_pool pool(2);
  for (const tensor_type type : all_types) {
    for (const std::int64_t rows : {1, 15, 16, 17, 97, 576}) {
      for (const std::int64_t columns : {32, 96, 576, 1536}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(rows);
        CAPTURE(columns);
        const random_matrix made = make_matrix(type, rows, columns, random);
        const host_matrix matrix(made.weight);
        const std::vector<float> x = random_floats(static_cast<std::size_t>(columns), random);
        const std::vector<double> want = multiply_in_double(made.weight, x);
        const std::vector<float> got = product(matrix, x, 1, pool);
        // one row's sum may cancel, so its size is no measure
        if (rows > 1) CHECK(relative_error(got, want) < 2e-6);
        double largest = 0;
        for (std::size_t i = 0; i < want.size(); ++i) largest = std::max(largest, std::abs(got[i] - want[i]));
        CHECK(std::isfinite(largest));
        CHECK(largest < 1e-3 * std::sqrt(static_cast<double>(columns)));
      }
    }
  }
}

TEST_CASE("host_matmul: columns of float, half and bfloat16 need be no multiple of anything") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  thread_pool pool(2);
  for (const tensor_type type : {tensor_type::f32, tensor_type::f16, tensor_type::bf16}) {
    for (const std::int64_t columns : {1, 2, 31, 33, 127, 509}) {
      CAPTURE(static_cast<int>(type));
      CAPTURE(columns);
      const random_matrix made = make_matrix(type, 37, columns, random);
      const std::vector<float> x = random_floats(static_cast<std::size_t>(columns), random);
      const std::vector<float> got = product(host_matrix(made.weight), x, 1, pool);
      CHECK(relative_error(got, multiply_in_double(made.weight, x)) < 2e-6);
    }
  }
}

TEST_CASE("host_matmul: a token's bits do not depend on the batch, its place in it or the threads") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  thread_pool one(1);
  thread_pool three(3);
  constexpr int most = 13;
  for (const tensor_type type : all_types) {
    CAPTURE(static_cast<int>(type));
    const std::int64_t rows = 83;
    const std::int64_t columns = 480;
    const random_matrix made = make_matrix(type, rows, columns, random);
    const host_matrix matrix(made.weight);
    const std::vector<float> x = random_floats(most * static_cast<std::size_t>(columns), random);
    std::vector<float> alone;
    for (int token = 0; token < most; ++token) {
      const std::vector<float> y =
          product(matrix, std::span(x).subspan(static_cast<std::size_t>(token * columns), columns), 1, one);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int first = 0; first < most; ++first) {
      for (int tokens = 1; tokens <= most - first; ++tokens) {
        CAPTURE(first);
        CAPTURE(tokens);
        const auto part = std::span(x).subspan(static_cast<std::size_t>(first * columns),
                                               static_cast<std::size_t>(tokens * columns));
        const auto want = std::span(alone).subspan(static_cast<std::size_t>(first * rows),
                                                   static_cast<std::size_t>(tokens * rows));
        CHECK(same_bits(product(matrix, part, tokens, one), want));
        CHECK(same_bits(product(matrix, part, tokens, three), want));
      }
    }
  }
}

TEST_CASE("host_matmul: the packed matrix is about as large as the tensor") {
  std::mt19937_64 random(1);
  for (const tensor_type type : all_types) {
    CAPTURE(static_cast<int>(type));
    const random_matrix made = make_matrix(type, 320, 576, random);
    CHECK(host_matrix(made.weight).bytes() == made.bytes.size());
  }
}

TEST_CASE("host_matmul: extreme scales and activations of size zero stay exact") {
  std::mt19937_64 random(2);
  thread_pool pool(1);
  random_matrix made = make_matrix(tensor_type::q4_1, 16, 32, random);
  for (std::size_t row = 0; row < 16; ++row) {
    const std::uint16_t halves[2] = {static_cast<std::uint16_t>(row % 2 ? 0x8001 : 0x7bff),  // -2^-24, 65504
                                     static_cast<std::uint16_t>(row % 3 ? 0x03ff : 0xfbff)};
    std::memcpy(&made.bytes[row * 20], halves, sizeof halves);
  }
  const host_matrix matrix(made.weight);
  std::vector<float> x(32, 0.0f);
  CHECK(product(matrix, x, 1, pool) == std::vector<float>(16, 0.0f));
  std::vector<float> row(32);
  for (std::size_t column = 0; column < 32; ++column) {
    std::fill(x.begin(), x.end(), 0.0f);
    x[column] = 1;
    const std::vector<float> y = product(matrix, x, 1, pool);
    for (std::int64_t r = 0; r < 16; ++r) {
      dequantize_row(made.weight, r, row);
      CHECK(y[static_cast<std::size_t>(r)] == row[column]);
    }
  }
}

TEST_CASE("host_matmul: wrong shapes and weights that are not finite are refused") {
  std::mt19937_64 random(3);
  thread_pool pool(1);
  random_matrix made = make_matrix(tensor_type::q4_0, 20, 64, random);
  const host_matrix matrix(made.weight);
  std::vector<float> x(128);
  std::vector<float> y(40);
  CHECK_NOTHROW(matmul(matrix, x, y, 2, pool));
  CHECK_NOTHROW(matmul(matrix, {}, {}, 0, pool));
  CHECK_THROWS_AS(matmul(matrix, x, y, 1, pool), invalid_argument);
  CHECK_THROWS_AS(matmul(matrix, std::span(x).first(127), y, 2, pool), invalid_argument);
  CHECK_THROWS_AS(matmul(matrix, x, std::span(y).first(39), 2, pool), invalid_argument);
  CHECK_THROWS_AS(host_matrix({tensor_type::q4_0, 20, 63, made.bytes}), invalid_argument);
  CHECK_THROWS_AS(host_matrix({tensor_type::q4_0, 21, 64, made.bytes}), invalid_argument);
  CHECK_THROWS_AS(host_matrix({tensor_type::f32, 0, 64, made.bytes}), invalid_argument);
  const std::uint16_t infinity = 0x7c00;
  std::memcpy(&made.bytes[18], &infinity, sizeof infinity);
  CHECK_THROWS_AS(host_matrix(made.weight), invalid_argument);
}

}  // namespace
