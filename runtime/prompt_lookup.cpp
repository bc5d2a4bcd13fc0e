#include "runtime/prompt_lookup.hpp"

#include <algorithm>

namespace stepgraph {

int prompt_lookup(std::span<const std::int32_t> history, std::span<std::int32_t> drafts, int longest,
                  int shortest) {
  const auto size = static_cast<std::int64_t>(history.size());
  for (std::int64_t length = std::min<std::int64_t>(longest, size - 1); length >= std::max(shortest, 1);
       --length) {
    const auto suffix = history.last(length);
    for (std::int64_t start = size - length - 1; start >= 0; --start) {
      if (!std::ranges::equal(history.subspan(start, length), suffix)) continue;
      const auto following = history.subspan(start + length);
      const std::size_t count = std::min(following.size(), drafts.size());
      std::copy_n(following.begin(), count, drafts.begin());
      return static_cast<int>(count);
    }
  }
  return 0;
}

}  // namespace stepgraph
