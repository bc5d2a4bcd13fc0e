#include "runtime/draft_length.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

#include "graphs/error.hpp"

namespace stepgraph {
namespace {

constexpr double decay = 0.98;           // of what was measured, at each new measure
constexpr std::uint64_t try_every = 24;  // rounds between trials of a neighbour
constexpr double draft_share = 0.1;      // what a further draft is taken to cost until it was measured

}  // namespace

draft_length_policy::draft_length_policy(int most, std::span<const int> lengths)
    : most_(most), lengths_{0}, kept_(std::max(most, 0), 0.0), tried_(std::max(most, 0), 0.0) {
  STEPGRAPH_EXPECTS(most >= 0, "draft_length_policy: most must not be negative, got ", most);
  for (int length = 1; length <= most; ++length)
    if (lengths.empty() || std::ranges::count(lengths, length) > 0) lengths_.push_back(length);
}

int draft_length_policy::at_most(int drafts) const {
  return *std::prev(std::ranges::upper_bound(lengths_, std::max(drafts, 0)));
}

int draft_length_policy::batch_of(int rows) {
  return std::bit_width(static_cast<unsigned>(std::max(rows - 1, 0)));
}

double draft_length_policy::expected_tokens(int drafts) const {
  double tokens = 1, reached = 1;
  for (int k = 0; k < drafts; ++k) {
    // a draft that was never tried is taken to be as good as a coin
    reached *= (kept_[k] + 1) / (tried_[k] + 2);
    tokens += reached;
  }
  return tokens;
}

double draft_length_policy::expected_seconds(int drafts, int rows) const {
  const auto batch = static_cast<std::size_t>(batch_of(rows));
  if (batch >= costs_.size()) return 1 + draft_share * drafts;
  const std::vector<measured>& costs = costs_[batch];
  if (costs[drafts].weight > 0) return costs[drafts].seconds;
  // the nearest that was measured, and what the drafts between are taken to cost
  for (int away = 1; away <= most_; ++away)
    for (const int near : {drafts - away, drafts + away})
      if (near >= 0 && near <= most_ && costs[near].weight > 0)
        return costs[near].seconds * (1 + draft_share * drafts) / (1 + draft_share * near);
  return 1 + draft_share * drafts;
}

int draft_length_policy::choose(int rows) {
  int best = 0;  // of lengths_
  double most = 0;
  const int last = static_cast<int>(lengths_.size()) - 1;
  for (int i = 0; i <= last; ++i) {
    const double rate = expected_tokens(lengths_[i]) / expected_seconds(lengths_[i], rows);
    if (rate > most) {
      most = rate;
      best = i;
    }
  }
  ++rounds_;
  if (rounds_ % try_every != 0) return lengths_[best];
  // one more and one less in turn
  const int neighbour = rounds_ / try_every % 2 == 1 ? best + 1 : best - 1;
  return lengths_[std::clamp(neighbour < 0 ? best + 1 : neighbour > last ? best - 1 : neighbour, 0, last)];
}

void draft_length_policy::note_row(int drafted, int accepted) {
  for (int k = 0; k < std::min({drafted, accepted + 1, most_}); ++k) {
    kept_[k] = kept_[k] * decay + (k < accepted ? 1 : 0);
    tried_[k] = tried_[k] * decay + 1;
  }
}

void draft_length_policy::note_round(int drafts, int rows, double seconds) {
  if (drafts < 0 || drafts > most_ || !(seconds > 0)) return;
  const auto batch = static_cast<std::size_t>(batch_of(rows));
  if (batch >= costs_.size()) costs_.resize(batch + 1, std::vector<measured>(most_ + 1));
  measured& cost = costs_[batch][drafts];
  // one round that the host was late for must not spoil the measure
  const double bounded = cost.weight > 4 ? std::min(seconds, 4 * cost.seconds) : seconds;
  cost.weight = cost.weight * decay + 1;
  cost.seconds += (bounded - cost.seconds) / cost.weight;
}

}  // namespace stepgraph
