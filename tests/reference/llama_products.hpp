#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

/// The fused products of a Llama layer written down plainly, in double, one number at a time.
namespace stepgraph::reference {

/// weight [rows, columns] . x [columns], times `scale`, for row `row`.
inline double product(const std::vector<float>& weight, const float* x, int row, int columns, double scale) {
  double sum = 0;
  for (int c = 0; c < columns; ++c) sum += double(weight[std::int64_t{row} * columns + c]) * x[c];
  return sum * scale;
}

/// What RMS norm multiplies with: 1 / sqrt(mean of the squares + epsilon).
inline double norm_factor(const float* residual, int columns, double epsilon) {
  double squares = 0;
  for (int c = 0; c < columns; ++c) squares += double(residual[c]) * residual[c];
  return 1.0 / std::sqrt(squares / columns + epsilon);
}

inline double silu(double value) {
  return value / (1.0 + std::exp(-value));
}

/// A pair turned by `angle`.
struct turned {
  double first, second;
};
inline turned rotate(double first, double second, double angle) {
  return {first * std::cos(angle) - second * std::sin(angle),
          first * std::sin(angle) + second * std::cos(angle)};
}

}  // namespace stepgraph::reference
