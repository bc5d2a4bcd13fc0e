#pragma once

#include <cstdint>
#include <vector>

namespace stepgraph::reference {

struct sampling_rule {
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
};

/// A distribution, and how near its filters came to another answer: the least distance of a sum or a ratio to
/// its threshold. Where that is within rounding, another implementation may rightly differ.
struct target {
  std::vector<double> p;  // [vocabulary]
  double margin = 1;
};

/// The target distribution as defined, over a full sort: mask; logits / temperature; top_k; softmax; top_p;
/// min_p; renormalised. `allowed` may be empty (all). Temperature 0 and top_k 1 are one-hot at the lowest
/// largest id.
target target_distribution(const std::vector<float>& logits, const sampling_rule& rule,
                           const std::vector<bool>& allowed = {});

/// Logarithm of the softmax of the masked logits alone.
double unfiltered_logprob(const std::vector<float>& logits, const std::vector<bool>& allowed,
                          std::int64_t id);

struct drawn {
  std::int64_t id = -1;
  double margin = 1;  // least distance of the cumulative sum to u, where another id would begin
};

/// The first id, ascending, whose cumulative sum exceeds u * total.
drawn draw(const std::vector<double>& weights, double u);

/// Chi-square statistic of counts against probabilities; infinite if something impossible was seen.
double chi_square(const std::vector<std::int64_t>& counts, const std::vector<double>& p);

/// What the statistic of a right sampler exceeds once in ten million times (Wilson and Hilferty's
/// approximation), for the outcomes with an expected count of 5 or more; the others are pooled by
/// `chi_square`.
double chi_square_limit(const std::vector<double>& p, std::int64_t draws);

}  // namespace stepgraph::reference
