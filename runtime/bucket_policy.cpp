#include "runtime/bucket_policy.hpp"

#include <algorithm>
#include <functional>

#include "graphs/error.hpp"

namespace stepgraph {

bucket_policy bucket_policy::powers_of_two(int largest) {
  STEPGRAPH_EXPECTS(largest > 0 && largest <= 1 << 24,
                    "bucket_policy: the largest size must be in [1, 2^24], got ", largest);
  std::vector<int> sizes{1};
  while (sizes.back() < largest) sizes.push_back(sizes.back() * 2);
  return bucket_policy(std::move(sizes));
}

bucket_policy bucket_policy::exactly(std::vector<int> sizes) {
  STEPGRAPH_EXPECTS(!sizes.empty(), "bucket_policy: no sizes given");
  STEPGRAPH_EXPECTS(
      sizes.front() > 0 && std::ranges::adjacent_find(sizes, std::greater_equal{}) == sizes.end(),
      "bucket_policy: sizes must be positive and ascending");
  STEPGRAPH_EXPECTS(sizes.back() <= 1 << 24, "bucket_policy: the largest size must be at most 2^24, got ",
                    sizes.back());
  return bucket_policy(std::move(sizes));
}

bucket_policy bucket_policy::with(std::span<const int> sizes) const {
  std::vector<int> all = sizes_;
  for (const int size : sizes)
    if (size > 0 && size < largest()) all.push_back(size);
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return bucket_policy(std::move(all));
}

int bucket_policy::bucket_for(int count) const {
  const auto found = std::ranges::lower_bound(sizes_, count);
  STEPGRAPH_EXPECTS(found != sizes_.end(), "bucket_policy: ", count, " is over the largest bucket, ",
                    largest());
  return *found;
}

}  // namespace stepgraph
