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

/// One line of logits and its mask, or some of its entries.
struct logits_line {
  const float* logits;                // [vocab_size]
  const std::uint32_t* allowed;       // [ceil(vocab_size / 32)] or null
  std::int32_t vocab_size;            // entries
  const std::int32_t* ids = nullptr;  // [vocab_size] or null: the ids of the entries, ascending
  std::uint64_t mass_elsewhere = 0;   // row_distribution::mass of ids that are no entries

  STEPGRAPH_HD bool allows(int entry) const { return !allowed || (allowed[entry >> 5] >> (entry & 31) & 1u); }
  STEPGRAPH_HD int id(int entry) const { return ids ? ids[entry] : entry; }
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

  /// The same as an integer, so that sums do not depend on who adds first.
  STEPGRAPH_HD std::uint64_t mass(float logit) const {
    return static_cast<std::uint64_t>(unnormalised(logit) * 0x1p40f);
  }

  STEPGRAPH_HD bool within_cutoff(std::uint32_t key, int id) const {
    return key > cutoff_key || (key == cutoff_key && id <= cutoff_id);
  }

  STEPGRAPH_HD float weight(const logits_line& line, int entry) const {
    if (!line.allows(entry)) return 0.0f;
    const float logit = line.logits[entry];
    if (!within_cutoff(ordered_key(logit), line.id(entry))) return 0.0f;
    const float value = unnormalised(logit);
    return value >= min_weight ? value : 0.0f;
  }

  STEPGRAPH_HD double probability(const logits_line& line, int entry) const {
    return static_cast<double>(weight(line, entry)) / total;
  }

  /// ln of the softmax of the allowed logits alone, at a logit that is one of them. NaN unless `unfiltered_total` was
  /// asked for.
  STEPGRAPH_HD float unfiltered_logprob(float logit) const {
    if (!(unfiltered_total > 0)) return NAN;
    const double below = logit == max_logit ? 0.0 : static_cast<double>(logit - max_logit);
    return static_cast<float>(below - log(unfiltered_total));
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

/// The shortest head of the ranking of `line` whose mass reaches `needed(total mass)`. Equal keys have equal
/// mass, `mass_of(key)`. Masses are integers, so that sums do not depend on who adds first. A radix descent:
/// three passes over the line, and one more if the cut falls between equal keys.
template <class Team, class Rank, class Needed, class MassOf>
STEPGRAPH_HD ranking_cutoff select_head(Team& team, const logits_line& line, const Rank& rank,
                                        const Needed& needed, const MassOf& mass_of) {
  const int vocab_size = line.vocab_size;
  if constexpr (Team::compares_few)
    if (vocab_size <= Team::few) return team.head_of_few(line, rank, needed);
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
  return {prefix, line.id(last)};
}

}  // namespace detail

/// What the filters leave of `line`, whose largest logit is known: cut-offs and the total weight.
template <class Team>
STEPGRAPH_HD void filter_line(Team& team, const logits_line& line, const sampling_settings& s,
                              std::int32_t vocab_size, row_distribution& d) {
  if (s.top_k > 0 && s.top_k < vocab_size) {
    const auto rank = [&](int entry) {
      return detail::ranked_mass{ordered_key(line.logits[entry]), line.allows(entry) ? std::uint64_t{1} : 0u};
    };
    const auto cutoff = detail::select_head(
        team, line, rank, [&s](std::uint64_t) { return static_cast<std::uint64_t>(s.top_k); },
        [](std::uint32_t) { return std::uint64_t{1}; });
    d.cutoff_key = cutoff.key;
    d.cutoff_id = cutoff.id;
  }
  if (s.top_p < 1.0f) {
    const auto rank = [&](int entry) {
      const float logit = line.logits[entry];
      const std::uint32_t key = ordered_key(logit);
      return detail::ranked_mass{
          key, line.allows(entry) && d.within_cutoff(key, line.id(entry)) ? d.mass(logit) : 0u};
    };
    const auto reach = [&](std::uint64_t total) {
      const double wanted =
          ceil(static_cast<double>(s.top_p) * static_cast<double>(total + line.mass_elsewhere));
      return wanted < 1.0 ? std::uint64_t{1} : static_cast<std::uint64_t>(wanted);
    };
    const auto cutoff = detail::select_head(team, line, rank, reach,
                                            [&d](std::uint32_t key) { return d.mass(float_of_key(key)); });
    // nothing left out: what is there already stands, ids at its edge included
    if (cutoff.key > d.cutoff_key || (cutoff.key == d.cutoff_key && cutoff.id < d.cutoff_id)) {
      d.cutoff_key = cutoff.key;
      d.cutoff_id = cutoff.id;
    }
  }
  if (s.min_p > 0.0f) d.min_weight = s.min_p < 1.0f ? s.min_p : 1.0f;
  d.total = team.sum(line.vocab_size, [&](int entry) { return d.weight(line, entry); });
}

/// The target distribution of `line`: mask; logits / temperature; top-k; softmax; top-p; min-p. `Team` works
/// on one line together, see row_team.hpp. Where there is more to draw than the largest, `use(team, head, d)`
/// may draw: `head` holds all entries of positive weight, and its team may be smaller. Unless `everywhere`
/// only the part of the team that holds rank 0 need know the result and comes to `use`.
template <class Team, class Use>
STEPGRAPH_HD row_distribution make_distribution(Team& team, const logits_line& line,
                                                const sampling_settings& s, bool with_unfiltered,
                                                bool everywhere, const Use& use) {
  row_distribution d;
  const auto largest = team.largest(line);
  d.best = largest.id;
  d.max_logit = largest.logit;
  if (largest.nan_id != INT_MAX || largest.id < 0) {
    d.status = static_cast<std::int32_t>(
        largest.id < 0 && largest.nan_id == INT_MAX ? row_status::no_allowed_token : row_status::nan_logits);
    d.nan_id = largest.nan_id;
    return d;
  }
  if (with_unfiltered)
    d.unfiltered_total = team.sum(line.vocab_size, [&](int id) { return d.weight(line, id); });
  if (is_greedy(s)) {
    d.cutoff_key = ordered_key(d.max_logit);
    d.cutoff_id = d.best;
    d.total = 1.0;
    return d;
  }
  d.inverse_temperature = 1.0f / s.temperature;
  team.narrow(line, s, d, everywhere, [&](auto& few, const logits_line& head) {
    filter_line(few, head, s, line.vocab_size, d);
    use(few, head, d);
  });
  return d;
}

/// The first entry, ascending, whose cumulative weight exceeds u times the whole. Always one of positive weight.
template <class Team, draw_purpose Purpose, class Weight>
STEPGRAPH_HD int draw_token(Team& team, int vocab_size, const Weight& weight, random_number<Purpose> number) {
  const double u = number.uniform();
  return team.draw(vocab_size, weight, [u](double total) { return u * total; });
}

}  // namespace stepgraph
