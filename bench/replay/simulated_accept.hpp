#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graphs/stream.hpp"
#include "kernels/speculate/accept_result.hpp"

namespace stepgraph::bench {

/// How many drafts of a row a simulated accept keeps. Probabilities of 0, 1, ... drafts.
struct accept_rule {
  std::vector<double> probability;
  std::string text;  // as asked for

  /// Always `drafts` of them.
  static accept_rule fixed(int drafts, int most);
  /// Each draft is kept with `rate` until the first that is not.
  static accept_rule rate(double rate, int most);
  /// Weights of 0, 1, ... drafts kept; such as a driver's own count of rounds by accepted drafts.
  static accept_rule weights(const std::vector<double>& weights, int most);

  double mean() const;
  std::vector<float> cumulative() const;
};

/// An accept without a target's opinion: each row keeps a drawn number of its drafts, at most those it has, so
/// that a round costs what it costs at that acceptance. Draws come from Philox, keyed by seed, row and a count of
/// the rounds that lies in device memory and that every run of the op raises.
struct simulated_accept_params {
  verify_view verify{};
  const float* cumulative = nullptr;  // [max_query_count] probability of at most so many drafts kept
  std::uint64_t seed = 0;
  std::uint32_t* rounds = nullptr;  // in and out, one number
  accept_result result{};           // out
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void simulated_accept(stream_ref at, const simulated_accept_params& params);

}  // namespace stepgraph::bench
