#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/sample/sampling_settings.hpp"

/// The target distribution of one query token, kept as a few numbers beside its logits instead of a line of
/// probabilities. That works because every filter keeps a head of one ranking (larger logit first, lower id
/// first among equals), so a cut-off (logit, id) says what is left.
namespace stepgraph {

/// A float as an unsigned number of the same order; the two zeros are one number, as they are equal.
STEPGRAPH_HD std::uint32_t ordered_key(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

STEPGRAPH_HD float float_of_key(std::uint32_t key) {
  return __builtin_bit_cast(float, key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/// One line of logits and its mask.
struct logits_line {
  const float* logits;           // [vocab_size]
  const std::uint32_t* allowed;  // [ceil(vocab_size / 32)] or null
  std::int32_t vocab_size;

  STEPGRAPH_HD bool allows(int id) const { return !allowed || (allowed[id >> 5] >> (id & 31) & 1u); }
};

/// A target distribution: p(id) = weight(id) / total.
struct row_distribution {
  double total = 0;             // of all weights; positive unless `status` says otherwise
  double unfiltered_total = 0;  // of exp(logit - max_logit) over allowed ids; 0 unless asked for
  float max_logit = 0;
  float inverse_temperature = 1;
  float min_weight = 0;          // min_p: what is less likely than this, relative to the largest, is dropped
  std::uint32_t cutoff_key = 0;  // ids whose ordered_key(logit) is lower are dropped
  std::int32_t cutoff_id = INT_MAX;  // ids over it whose key equals cutoff_key are dropped
  std::int32_t best = -1;            // id of the largest logit, the lowest of equals
  std::int32_t status = 0;           // row_status: ok, nan_logits or no_allowed_token; only then is p defined
  std::int32_t nan_id = 0;           // lowest id with a NaN, where status says so

  /// exp((logit - max) / temperature). Infinite logits share all the probability.
  STEPGRAPH_HD float unnormalised(float logit) const {
    return logit == max_logit ? 1.0f : expf((logit - max_logit) * inverse_temperature);
  }

  STEPGRAPH_HD bool within_cutoff(std::uint32_t key, int id) const {
    return key > cutoff_key || (key == cutoff_key && id <= cutoff_id);
  }

  STEPGRAPH_HD float weight(const logits_line& line, int id) const {
    if (!line.allows(id)) return 0.0f;
    const float logit = line.logits[id];
    if (!within_cutoff(ordered_key(logit), id)) return 0.0f;
    const float value = unnormalised(logit);
    return value >= min_weight ? value : 0.0f;
  }

  STEPGRAPH_HD double probability(const logits_line& line, int id) const {
    return static_cast<double>(weight(line, id)) / total;
  }
};

namespace detail {

/// Place in the ranking, and how much it counts there; a mass of 0 takes no part.
struct ranked_mass {
  std::uint32_t key;
  std::uint64_t mass;
};

/// The end of a head of the ranking.
struct ranking_cutoff {
  std::uint32_t key = 0;
  std::int32_t id = INT_MAX;
};

/// The shortest head of the ranking whose mass reaches `needed(total mass)`. Equal keys have equal mass,
/// `mass_of(key)`. Masses are integers, so that sums do not depend on who adds first. A radix descent: three
/// passes over the line, and one more if the cut falls between equal keys.
template <class Team, class Rank, class Needed, class MassOf>
STEPGRAPH_HD ranking_cutoff select_head(Team& team, int vocab_size, const Rank& rank, const Needed& needed,
                                        const MassOf& mass_of) {
  constexpr int shifts[3] = {21, 10, 0};
  constexpr int bits[3] = {11, 11, 10};
  std::uint32_t prefix = 0;  // the digits found so far
  std::uint64_t above = 0;   // mass of keys over every key with that prefix
  std::uint64_t target = 0, there = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const auto digit =
        team.find_digit(vocab_size, rank, prefix, shifts[pass], bits[pass], [&](std::uint64_t total) {
          if (pass == 0) target = needed(total);
          return target - above;
        });
    if (!digit.reached) return {};
    prefix = prefix << bits[pass] | digit.digit;
    above += digit.above;
    there = digit.mass;
  }
  const std::uint64_t each = mass_of(prefix);
  const std::uint64_t wanted = (target - above + each - 1) / each;
  if (wanted * each >= there) return {prefix, INT_MAX};
  // the cut falls between equals: the lower ids stay
  const auto is_equal = [&](int id) {
    const ranked_mass it = rank(id);
    return it.mass > 0 && it.key == prefix ? 1.0f : 0.0f;
  };
  const int last =
      team.draw(vocab_size, is_equal, [wanted](double) { return static_cast<double>(wanted) - 0.5; });
  return {prefix, last};
}

}  // namespace detail

/// The target distribution of `line`: mask; logits / temperature; top-k; softmax; top-p; min-p. `Team` works
/// on one line together, see row_team.hpp.
template <class Team>
STEPGRAPH_HD row_distribution make_distribution(Team& team, const logits_line& line,
                                                const sampling_settings& s, bool with_unfiltered) {
  row_distribution d;
  const int vocab_size = line.vocab_size;
  const auto largest = team.largest(line);
  d.best = largest.id;
  d.max_logit = largest.logit;
  if (largest.nan_id != INT_MAX || largest.id < 0) {
    d.status = static_cast<std::int32_t>(
        largest.id < 0 && largest.nan_id == INT_MAX ? row_status::no_allowed_token : row_status::nan_logits);
    d.nan_id = largest.nan_id;
    return d;
  }
  if (with_unfiltered) d.unfiltered_total = team.sum(vocab_size, [&](int id) { return d.weight(line, id); });
  if (is_greedy(s)) {
    d.cutoff_key = ordered_key(d.max_logit);
    d.cutoff_id = d.best;
    d.total = 1.0;
    return d;
  }
  d.inverse_temperature = 1.0f / s.temperature;
  if (s.top_k > 0 && s.top_k < vocab_size) {
    const auto rank = [&](int id) {
      return detail::ranked_mass{ordered_key(line.logits[id]), line.allows(id) ? std::uint64_t{1} : 0u};
    };
    const auto cutoff = detail::select_head(
        team, vocab_size, rank, [&s](std::uint64_t) { return static_cast<std::uint64_t>(s.top_k); },
        [](std::uint32_t) { return std::uint64_t{1}; });
    d.cutoff_key = cutoff.key;
    d.cutoff_id = cutoff.id;
  }
  if (s.top_p < 1.0f) {
    const auto mass = [&d](float logit) {
      return static_cast<std::uint64_t>(d.unnormalised(logit) * 0x1p40f);
    };
    const auto rank = [&](int id) {
      const float logit = line.logits[id];
      const std::uint32_t key = ordered_key(logit);
      return detail::ranked_mass{key, line.allows(id) && d.within_cutoff(key, id) ? mass(logit) : 0u};
    };
    const auto reach = [&s](std::uint64_t total) {
      const double wanted = ceil(static_cast<double>(s.top_p) * static_cast<double>(total));
      return wanted < 1.0 ? std::uint64_t{1} : static_cast<std::uint64_t>(wanted);
    };
    const auto cutoff = detail::select_head(team, vocab_size, rank, reach,
                                            [&](std::uint32_t key) { return mass(float_of_key(key)); });
    // nothing left out: what is there already stands, ids at its edge included
    if (cutoff.key > d.cutoff_key || (cutoff.key == d.cutoff_key && cutoff.id < d.cutoff_id)) {
      d.cutoff_key = cutoff.key;
      d.cutoff_id = cutoff.id;
    }
  }
  if (s.min_p > 0.0f) d.min_weight = s.min_p < 1.0f ? s.min_p : 1.0f;
  d.total = team.sum(vocab_size, [&](int id) { return d.weight(line, id); });
  return d;
}

/// The first id, ascending, whose cumulative weight exceeds u times the whole. Always one of positive weight.
template <class Team, draw_purpose Purpose, class Weight>
STEPGRAPH_HD int draw_token(Team& team, int vocab_size, const Weight& weight, random_number<Purpose> number) {
  const double u = number.uniform();
  return team.draw(vocab_size, weight, [u](double total) { return u * total; });
}

}  // namespace stepgraph
