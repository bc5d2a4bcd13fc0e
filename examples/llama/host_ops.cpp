#include "examples/llama/host_ops.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "graphs/error.hpp"
#include "kernels/target_clones.hpp"

namespace stepgraph::llama {
namespace {

constexpr int lanes = 16;

/// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2; e^r is its Taylor series to r^6, whose
/// remainder is 1.7e-7 of e^r at most. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low
/// bits.
STEPGRAPH_INLINE float exponential_of(float x) {
  constexpr float rounder = 0x1.8p23f;
  constexpr float ln2_high = 0x1.62ep-1f;  // 13 bits: n times it is exact
  constexpr float ln2_low = 0x1.0bfbe8p-15f;
  x = x > 88.0f ? 88.0f : x;  // a NaN stays
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 0x1.715476p0f + rounder;
  const float n = shifted - rounder;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float series = 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  return series * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u);
}

STEPGRAPH_TARGET_CLONES float sum_of_squares(const float* x, std::ptrdiff_t size) {
  float sums[lanes] = {};
  std::ptrdiff_t i = 0;
  for (; i + lanes <= size; i += lanes) {
#pragma omp simd simdlen(16)
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  for (; i < size; ++i) sums[i % lanes] += x[i] * x[i];
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

STEPGRAPH_TARGET_CLONES void scale_rows(const float* x, const float* gain, float scale, float* out,
                                        std::ptrdiff_t size) {
#pragma omp simd
  for (std::ptrdiff_t i = 0; i < size; ++i) out[i] = x[i] * scale * gain[i];
}

STEPGRAPH_TARGET_CLONES void rotate_head(float* head, const float* turns, std::ptrdiff_t pairs) {
#pragma omp simd
  for (std::ptrdiff_t i = 0; i < pairs; ++i) {
    const float even = head[2 * i];
    const float odd = head[2 * i + 1];
    head[2 * i] = even * turns[2 * i] - odd * turns[2 * i + 1];
    head[2 * i + 1] = odd * turns[2 * i] + even * turns[2 * i + 1];
  }
}

STEPGRAPH_TARGET_CLONES void silu_rows(const float* gate, const float* up, float* out, std::ptrdiff_t size) {
#pragma omp simd
  for (std::ptrdiff_t i = 0; i < size; ++i) out[i] = gate[i] / (1.0f + exponential_of(-gate[i])) * up[i];
}

STEPGRAPH_TARGET_CLONES void add_rows(float* x, const float* y, std::ptrdiff_t size) {
#pragma omp simd
  for (std::ptrdiff_t i = 0; i < size; ++i) x[i] += y[i];
}

STEPGRAPH_TARGET_CLONES void exponential_rows(const float* x, float* out, std::ptrdiff_t size) {
#pragma omp simd
  for (std::ptrdiff_t i = 0; i < size; ++i) out[i] = exponential_of(x[i]);
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> gain, float epsilon, std::span<float> out) {
  STEPGRAPH_EXPECTS(!x.empty() && gain.size() == x.size() && out.size() == x.size(), "rms_norm: x [",
                    x.size(), "], gain [", gain.size(), "], out [", out.size(), "] must be of one size");
  const float mean = sum_of_squares(x.data(), std::ssize(x)) / static_cast<float>(x.size());
  scale_rows(x.data(), gain.data(), 1.0f / std::sqrt(mean + epsilon), out.data(), std::ssize(x));
}

rope_table::rope_table(int positions, int head_size, float base)
    : positions_(positions), head_size_(head_size) {
  STEPGRAPH_EXPECTS(positions > 0 && head_size > 0 && head_size % 2 == 0 && base > 0,
                    "rope_table: needs positions, an even head size and a positive base, got ", positions,
                    ", ", head_size, ", ", base);
  values_.reserve(static_cast<std::size_t>(positions) * static_cast<std::size_t>(head_size));
  std::vector<double> frequencies;
  for (int i = 0; i < head_size; i += 2) {
    frequencies.push_back(std::pow(static_cast<double>(base), -static_cast<double>(i) / head_size));
  }
  for (int position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      values_.push_back(static_cast<float>(std::cos(position * frequency)));
      values_.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
}

std::span<const float> rope_table::row(int position) const {
  STEPGRAPH_EXPECTS(position >= 0 && position < positions_, "rope_table: holds positions below ", positions_,
                    ", asked for ", position);
  const auto size = static_cast<std::size_t>(head_size_);
  return std::span(values_).subspan(static_cast<std::size_t>(position) * size, size);
}

void rope(std::span<float> heads, const rope_table& table, int position) {
  const std::span<const float> turns = table.row(position);
  STEPGRAPH_EXPECTS(heads.size() % turns.size() == 0, "rope: ", heads.size(),
                    " elements are not whole heads of ", turns.size());
  for (std::size_t at = 0; at < heads.size(); at += turns.size()) {
    rotate_head(heads.data() + at, turns.data(), std::ssize(turns) / 2);
  }
}

void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out) {
  STEPGRAPH_EXPECTS(up.size() == gate.size() && out.size() == gate.size(), "silu_multiply: gate [",
                    gate.size(), "], up [", up.size(), "], out [", out.size(), "] must be of one size");
  silu_rows(gate.data(), up.data(), out.data(), std::ssize(gate));
}

void add(std::span<float> x, std::span<const float> y) {
  STEPGRAPH_EXPECTS(x.size() == y.size(), "add: x [", x.size(), "] and y [", y.size(),
                    "] must be of one size");
  add_rows(x.data(), y.data(), std::ssize(x));
}

void exponential(std::span<const float> x, std::span<float> out) {
  STEPGRAPH_EXPECTS(x.size() == out.size(), "exponential: x [", x.size(), "] and out [", out.size(),
                    "] must be of one size");
  exponential_rows(x.data(), out.data(), std::ssize(x));
}

}  // namespace stepgraph::llama
