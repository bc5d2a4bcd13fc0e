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

int prompt_lookup_tree(std::span<const std::int32_t> history, std::span<std::int32_t> drafts,
                       std::span<std::int32_t> parents, int branches, int longest, int shortest) {
  const auto size = static_cast<std::int64_t>(history.size());
  branches = static_cast<int>(std::min<std::int64_t>(branches, std::ssize(drafts)));
  int count = 0, found = 0;
  for (std::int64_t length = std::min<std::int64_t>(longest, size - 1); length >= std::max(shortest, 1);
       --length) {
    const auto suffix = history.last(length);
    for (std::int64_t start = size - length - 1; start >= 0 && found < branches; --start) {
      if (!std::ranges::equal(history.subspan(start, length), suffix)) continue;
      const auto following = history.subspan(start + length);
      bool seen = false;  // a branch with this first token is there
      for (int i = 0; i < count; ++i) seen = seen || (parents[i] == 0 && drafts[i] == following.front());
      if (seen) continue;
      // an even share of what is left, rounded up
      const std::int64_t left = std::ssize(drafts) - count, to_come = branches - found++;
      const std::int64_t share = std::min((left + to_come - 1) / to_come, std::ssize(following));
      for (std::int64_t i = 0; i < share; ++i, ++count) {
        drafts[count] = following[i];
        parents[count] = i == 0 ? 0 : count;
      }
    }
  }
  return count;
}

}  // namespace stepgraph
