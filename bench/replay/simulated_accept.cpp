#include "bench/replay/simulated_accept.hpp"

#include <cmath>
#include <numeric>

#include "bench/replay/simulated_accept_op.hpp"
#include "kernels/speculate/check_accept.hpp"

namespace stepgraph::bench {

accept_rule accept_rule::fixed(int drafts, int most) {
  STEPGRAPH_EXPECTS(drafts >= 0 && drafts <= most, "--accept: ", drafts, " drafts kept of ", most);
  std::vector<double> probability(most + 1, 0.0);
  probability[drafts] = 1;
  return {std::move(probability), message("fixed ", drafts)};
}

accept_rule accept_rule::rate(double rate, int most) {
  STEPGRAPH_EXPECTS(rate >= 0 && rate <= 1, "--accept-rate: must be in [0, 1], got ", rate);
  std::vector<double> probability;
  double reached = 1;
  for (int kept = 0; kept < most; ++kept, reached *= rate) probability.push_back(reached * (1 - rate));
  probability.push_back(reached);
  return {std::move(probability), message("rate ", rate)};
}

accept_rule accept_rule::weights(const std::vector<double>& weights, int most) {
  double sum = 0;
  std::string text = "weights";
  for (const double weight : weights) {
    STEPGRAPH_EXPECTS(weight >= 0, "--accept-weights: must not be negative, got ", weight);
    sum += weight;
    text += message(' ', weight);
  }
  STEPGRAPH_EXPECTS(sum > 0 && std::ssize(weights) <= most + 1, "--accept-weights: needs at most ", most + 1,
                    " weights, one of them positive, got ", weights.size(), " of sum ", sum);
  std::vector<double> probability(most + 1, 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) probability[i] = weights[i] / sum;
  return {std::move(probability), std::move(text)};
}

double accept_rule::mean() const {
  double sum = 0;
  for (std::size_t kept = 0; kept < probability.size(); ++kept) sum += double(kept) * probability[kept];
  return sum;
}

std::vector<float> accept_rule::cumulative() const {
  std::vector<float> sums;
  double sum = 0;
  for (const double each : probability) sums.push_back(static_cast<float>(sum += each));
  return sums;
}

void simulated_accept(stream_ref at, const simulated_accept_params& params) {
  constexpr const char* op = simulated_accept_op::name;
  detail::check_verify(op, params.verify);
  detail::check_result(op, params.result, params.verify.max_query_count);
  detail::check_pointers(op, {{"verify.token_ids", params.verify.token_ids},
                              {"cumulative", params.cumulative},
                              {"rounds", params.rounds}});
  launch_tiles(at, simulated_accept_op{params});
}

}  // namespace stepgraph::bench
