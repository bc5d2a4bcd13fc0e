#pragma once

#include <climits>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/sample/row_distribution.hpp"

namespace stepgraph {

/// The largest of a line of logits.
struct largest_logit {
  float logit;
  int id;      // the lowest of equals, -1 where nothing is allowed
  int nan_id;  // lowest allowed id with a NaN, or INT_MAX
};

/// One digit of a radix descent from the largest key down.
struct found_digit {
  bool reached;  // false: all the mass together does not reach what is needed
  std::uint32_t digit;
  std::uint64_t above;  // mass with a larger digit
  std::uint64_t mass;   // mass with this digit
};

/// Who works on one line of a vocabulary together: a block on the GPU (row_team.cuh), one thread here. What
/// an op does with a line is written once over these passes; all threads of a team call them alike and get
/// the same answer, which depends on the line alone, not on timing.
class host_row_team {
 public:
  static constexpr bool compares_few = false;
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  static void sync() {}
  /// One thread of each set of threads that share an op's scratch.
  static constexpr bool writes_scratch() { return true; }

  /// `visit(entry)` once for each entry of a line, by whichever thread has it at hand.
  template <class Visit>
  static void for_each(int vocab_size, const Visit& visit) {
    for (int entry = 0; entry < vocab_size; ++entry) visit(entry);
  }

  /// The line as the team holds it: the same numbers, nearer. Later passes should be given this one.
  static logits_line hold(const logits_line& line) { return line; }

  /// `use(team, head)`, where `head` holds all entries that the filters may leave, and perhaps others.
  template <class Use>
  void narrow(const logits_line& line, const sampling_settings&, const row_distribution&, bool,
              const Use& use) {
    use(*this, line);
  }

  static largest_logit largest(const logits_line& line) {
    largest_logit best{-INFINITY, -1, INT_MAX};
    for (int id = 0; id < line.vocab_size; ++id) {
      if (!line.allows(id)) continue;
      const float logit = line.logits[id];
      if (std::isnan(logit)) {
        if (best.nan_id == INT_MAX) best.nan_id = id;
      } else if (best.id < 0 || logit > best.logit) {
        best.logit = logit;
        best.id = id;
      }
    }
    return best;
  }

  template <class Weight>
  static double sum(int vocab_size, const Weight& weight) {
    double total = 0;
    for (int id = 0; id < vocab_size; ++id) total += weight(id);
    return total;
  }

  /// The first id, ascending, whose cumulative weight exceeds `target(total)`; rounding apart that is one,
  /// and the last id of positive weight stands in. -1 if no weight is positive.
  template <class Weight, class Target>
  static int draw(int vocab_size, const Weight& weight, const Target& target) {
    const double limit = target(sum(vocab_size, weight));
    double before = 0;
    int last = -1;
    for (int id = 0; id < vocab_size; ++id) {
      const double mine = weight(id);
      if (!(mine > 0)) continue;
      last = id;
      before += mine;
      if (before > limit) break;
    }
    return last;
  }

  /// Among keys that start with `prefix`, the digit of `bits` bits above `shift` at which the mass, from the
  /// largest digit down, reaches `needed(mass of all)`.
  template <class Rank, class Needed>
  static found_digit find_digit(int vocab_size, const Rank& rank, std::uint32_t prefix, int shift, int bits,
                                const Needed& needed) {
    static thread_local std::vector<std::uint64_t> masses;
    masses.assign(std::size_t{1} << bits, 0);
    std::uint64_t total = 0;
    for (int id = 0; id < vocab_size; ++id) {
      const detail::ranked_mass it = rank(id);
      if (it.mass == 0 || (std::uint64_t{it.key} >> (shift + bits)) != prefix) continue;
      masses[it.key >> shift & (masses.size() - 1)] += it.mass;
      total += it.mass;
    }
    const std::uint64_t target = needed(total);
    std::uint64_t above = 0;
    for (std::size_t digit = masses.size(); digit-- > 0;) {
      if (above + masses[digit] >= target && masses[digit] > 0)
        return {true, static_cast<std::uint32_t>(digit), above, masses[digit]};
      above += masses[digit];
    }
    return {false, 0, above, 0};
  }
};

}  // namespace stepgraph
