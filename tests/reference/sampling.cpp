#include "tests/reference/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace stepgraph::reference {

target target_distribution(const std::vector<float>& logits, const sampling_rule& rule,
                           const std::vector<bool>& allowed) {
  const std::size_t vocabulary = logits.size();
  target out;
  out.p.assign(vocabulary, 0.0);
  std::vector<std::size_t> ranking;
  for (std::size_t id = 0; id < vocabulary; ++id)
    if (allowed.empty() || allowed[id]) ranking.push_back(id);
  if (ranking.empty()) return out;
  std::stable_sort(ranking.begin(), ranking.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (rule.temperature == 0 || rule.top_k == 1) {
    out.p[ranking[0]] = 1.0;
    return out;
  }
  if (rule.top_k > 0 && rule.top_k < static_cast<std::int64_t>(ranking.size()))
    ranking.resize(static_cast<std::size_t>(rule.top_k));
  const auto probabilities = [&] {
    std::vector<double> p;
    for (const std::size_t id : ranking)
      p.push_back(std::exp((static_cast<double>(logits[id]) - logits[ranking[0]]) / rule.temperature));
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
    return p;
  };
  if (rule.top_p < 1) {
    const std::vector<double> p = probabilities();
    double sum = 0;
    std::size_t kept = 0;
    while (kept < p.size()) {
      sum += p[kept++];
      out.margin = std::min(out.margin, std::fabs(sum - rule.top_p));
      if (sum >= rule.top_p) break;
    }
    ranking.resize(kept);
  }
  if (rule.min_p > 0) {
    const std::vector<double> p = probabilities();
    std::size_t kept = 0;
    while (kept < p.size() && p[kept] >= rule.min_p * p[0]) ++kept;
    for (std::size_t i = 1; i < p.size(); ++i)
      out.margin = std::min(out.margin, std::fabs(p[i] / p[0] - rule.min_p));
    ranking.resize(kept);
  }
  const std::vector<double> p = probabilities();
  for (std::size_t i = 0; i < ranking.size(); ++i) out.p[ranking[i]] = p[i];
  return out;
}

double unfiltered_logprob(const std::vector<float>& logits, const std::vector<bool>& allowed,
                          std::int64_t id) {
  double largest = -std::numeric_limits<double>::infinity(), total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (allowed.empty() || allowed[i]) largest = std::max(largest, static_cast<double>(logits[i]));
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (allowed.empty() || allowed[i]) total += std::exp(logits[i] - largest);
  return logits[static_cast<std::size_t>(id)] - largest - std::log(total);
}

drawn draw(const std::vector<double>& weights, double u) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  drawn out;
  double sum = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    sum += weights[id];
    out.margin = std::min(out.margin, std::fabs(sum / total - u));
    if (out.id < 0 && sum > u * total) out.id = static_cast<std::int64_t>(id);
  }
  return out;
}

namespace {

bool is_pooled(double p, std::int64_t draws) {
  return p * static_cast<double>(draws) < 5;
}

}  // namespace

double chi_square(const std::vector<std::int64_t>& counts, const std::vector<double>& p) {
  const std::int64_t draws = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  double statistic = 0, rare = 0, rare_seen = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0 && counts[i] > 0) return std::numeric_limits<double>::infinity();
    const double expected = p[i] * static_cast<double>(draws);
    if (is_pooled(p[i], draws)) {
      rare += expected;
      rare_seen += static_cast<double>(counts[i]);
    } else {
      statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
  }
  // a pool of few is no normal number; it may still not be many
  if (rare >= 5) statistic += (rare_seen - rare) * (rare_seen - rare) / rare;
  if (rare < 5 && rare_seen > 30) return std::numeric_limits<double>::infinity();
  return statistic;
}

double chi_square_limit(const std::vector<double>& p, std::int64_t draws) {
  double outcomes = 0, rare = 0;
  for (const double x : p) {
    if (x > 0 && !is_pooled(x, draws)) outcomes += 1;
    if (is_pooled(x, draws)) rare += x * static_cast<double>(draws);
  }
  if (rare >= 5) outcomes += 1;
  const double freedom = std::max(1.0, outcomes - 1), z = 5.2;
  const double root = 1 - 2 / (9 * freedom) + z * std::sqrt(2 / (9 * freedom));
  return freedom * root * root * root;
}

}  // namespace stepgraph::reference
