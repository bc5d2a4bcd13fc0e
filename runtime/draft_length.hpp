#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stepgraph {

/// Chooses K, the drafts of a round, from what was measured: how often the k-th draft is accepted once those
/// before it were, and what a round of K drafts costs at a batch of about this size. Takes the K that promises
/// the most tokens a second; 0 where none beats plain decoding. Now and then it tries a neighbour, so that both
/// measures stay true. Deterministic in what it is told.
class draft_length_policy {
 public:
  /// `lengths`: the K over 0 that it may choose; empty: 1 to `most`.
  explicit draft_length_policy(int most, std::span<const int> lengths = {});

  /// K for the next round of `rows` rows: 0, or one of the lengths.
  int choose(int rows);

  /// The largest K not over `drafts` that it may choose.
  int at_most(int drafts) const;

  /// A row verified `drafted` drafts, of which the first `accepted` were kept.
  void note_row(int drafted, int accepted);

  /// A round of K = `drafts` with `rows` rows took so long, from result to result.
  void note_round(int drafts, int rows, double seconds);

  /// Tokens that a row is expected to emit in a round of K = `drafts`.
  double expected_tokens(int drafts) const;

  /// Expected seconds of a round of K = `drafts` with `rows` rows.
  double expected_seconds(int drafts, int rows) const;

 private:
  struct measured {
    double seconds = 0;
    double weight = 0;
  };
  static int batch_of(int rows);

  int most_;
  std::vector<int> lengths_;  // 0 first, ascending
  std::uint64_t rounds_ = 0;
  std::vector<double> kept_, tried_;          // [most] decayed counts of the k-th draft
  std::vector<std::vector<measured>> costs_;  // [batch][most + 1]
};

}  // namespace stepgraph
