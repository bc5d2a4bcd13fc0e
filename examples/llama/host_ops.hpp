#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace stepgraph::llama {

// The small operations of a decode step on the host, each on one token's row. Float throughout; outputs may
// be the inputs themselves (the same span), not overlap them otherwise.

/// out = x / sqrt(mean(x^2) + epsilon) * gain, all [hidden].
void rms_norm(std::span<const float> x, std::span<const float> gain, float epsilon, std::span<float> out);

/// Cosines and sines of the rotary embedding for positions [0, positions), computed in double.
class rope_table {
 public:
  rope_table() = default;
  rope_table(int positions, int head_size, float base);

  int positions() const { return positions_; }
  int head_size() const { return head_size_; }
  /// [head_size]: cosine and sine of pair 0, of pair 1 and so on.
  std::span<const float> row(int position) const;

 private:
  int positions_ = 0;
  int head_size_ = 0;
  std::vector<float> values_;  // [positions, head_size / 2, 2]
};

/// Turns each neighbouring pair (2i, 2i + 1) of every head in `heads` [any number, head_size] in place.
void rope(std::span<float> heads, const rope_table& table, int position);

/// out = gate / (1 + exp(-gate)) * up, all [ffn].
void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out);

/// x += y.
void add(std::span<float> x, std::span<const float> y);

/// out = exp(x), relative error below 1e-6. Past [-87, 88] it is exp of that bound, so never 0 or infinite.
void exponential(std::span<const float> x, std::span<float> out);

}  // namespace stepgraph::llama
