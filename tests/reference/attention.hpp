#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace stepgraph::reference {

/// One query head of one query token against the cached tokens it may see, in double and plain loops.
struct attention_case {
  std::vector<double> query;                                      // [head_size]
  std::int64_t positions = 0;                                     // cached tokens that exist for it, c
  std::function<bool(std::int64_t position)> visible;             // beyond causality; empty: all
  std::function<double(std::int64_t position, int element)> key;  // of the query's KV head
  std::function<double(std::int64_t position, int element)> value;
  double scale = 1.0;
  double logit_cap = 0.0;   // cap * tanh(x / cap); 0: off
  std::int64_t window = 0;  // positions seen, own included; 0: all
  bool has_sink = false;
  double sink = 0.0;  // a logit in the denominator alone
};

struct attention_output {
  std::vector<double> output;  // [head_size], zeros where nothing is seen
  double log_sum_exp = -std::numeric_limits<double>::infinity();
};

inline attention_output attention(const attention_case& in) {
  const int size = static_cast<int>(in.query.size());
  attention_output out{.output = std::vector<double>(size, 0.0)};
  std::vector<double> logits;
  std::vector<std::int64_t> seen;
  for (std::int64_t position = 0; position < in.positions; ++position) {
    if (in.window > 0 && position < in.positions - in.window) continue;
    if (in.visible && !in.visible(position)) continue;
    double logit = 0.0;
    for (int d = 0; d < size; ++d) logit += in.query[d] * in.key(position, d);
    logit *= in.scale;
    if (in.logit_cap > 0) logit = in.logit_cap * std::tanh(logit / in.logit_cap);
    logits.push_back(logit);
    seen.push_back(position);
  }
  if (seen.empty()) return out;
  double largest = in.has_sink ? in.sink : logits.front();
  for (const double logit : logits) largest = std::max(largest, logit);
  double sum = in.has_sink ? std::exp(in.sink - largest) : 0.0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double weight = std::exp(logits[i] - largest) / sum;
    for (int d = 0; d < size; ++d) out.output[d] += weight * in.value(seen[i], d);
  }
  out.log_sum_exp = largest + std::log(sum);
  return out;
}

}  // namespace stepgraph::reference
