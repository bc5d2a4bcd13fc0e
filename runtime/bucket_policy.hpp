#pragma once

#include <span>
#include <utility>
#include <vector>

namespace stepgraph {

/// The sizes that steps are captured for: a step of `count` rows (or tokens) runs in the smallest bucket that
/// holds it.
class bucket_policy {
 public:
  /// 1, 2, 4, ... up to the first that holds `largest`.
  static bucket_policy powers_of_two(int largest);

  /// These sizes. Throws `invalid_argument` unless they are positive and ascending.
  static bucket_policy exactly(std::vector<int> sizes);

  /// The same and these sizes besides, as far as they are positive and not over the largest.
  bucket_policy with(std::span<const int> sizes) const;

  /// The smallest bucket of at least `count`. Throws `invalid_argument` naming the largest if none holds it.
  int bucket_for(int count) const;

  std::span<const int> sizes() const noexcept { return sizes_; }
  int largest() const noexcept { return sizes_.back(); }

 private:
  explicit bucket_policy(std::vector<int> sizes) : sizes_(std::move(sizes)) {}
  std::vector<int> sizes_;
};

}  // namespace stepgraph
