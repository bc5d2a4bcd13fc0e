#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/kernels/speculate_fixture.hpp"

namespace stepgraph {

/// Random accepted paths of a verify step, with the slots that the step was given.
struct commit_case {
  verify_case step;
  int page_shift = 0, pool_pages = 0, columns = 0;
  std::vector<std::vector<std::int64_t>> paths;  // [live], the root first; empty where E = 0
  std::vector<std::int32_t> base;                // [live] tokens before the step
  std::vector<std::int32_t> requests;            // [rows]
  std::vector<std::int32_t> table;               // [rows + 1, columns] slots by position
  std::vector<std::int32_t> slots;               // [tokens] out_cache_loc

  std::vector<std::int32_t> accept_counts() const {
    std::vector<std::int32_t> out(step.rows, wild);
    for (int row = 0; row < step.live; ++row)
      out[row] = std::max<int>(0, static_cast<int>(paths[row].size()) - 1);
    return out;
  }
  std::vector<std::int32_t> packed_paths() const {
    std::vector<std::int32_t> out(static_cast<std::size_t>(step.rows) * step.max_nodes, wild);
    for (int row = 0; row < step.live; ++row)
      std::copy(paths[row].begin(), paths[row].end(),
                out.begin() + static_cast<std::size_t>(row) * step.max_nodes);
    return out;
  }
  std::vector<std::int32_t> lengths() const {
    std::vector<std::int32_t> out(step.rows, wild);
    for (int row = 0; row < step.live; ++row) out[row] = base[row] + step.nodes(row);
    return out;
  }
};

/// Every two neighbouring rows share the pages of their prefix; slots beyond it are each row's own.
inline commit_case random_commit(std::uint64_t seed, int rows, int live, int max_nodes, int page_shift) {
  reference::random_integers random(seed);
  commit_case in;
  in.step = random_verify_case(random, rows, live, max_nodes, 3, false);
  in.page_shift = page_shift;
  const int page = 1 << page_shift, prefix_pages = 2;
  const int own_pages = (max_nodes + page - 1) / page + 2;
  in.columns = (prefix_pages + own_pages) * page;
  in.pool_pages = 1 + (rows + 1) * (prefix_pages + own_pages);
  std::vector<std::int32_t> pages(in.pool_pages - 1);
  std::iota(pages.begin(), pages.end(), 1);
  for (std::size_t i = pages.size(); i-- > 1;) std::swap(pages[i], pages[random.below(i + 1)]);
  std::vector<std::vector<std::int32_t>> lines;
  for (int request = 0; request <= rows; ++request) {
    lines.emplace_back();
    for (int p = 0; p < prefix_pages + own_pages; ++p) {
      const bool shared = request % 2 == 1 && p < prefix_pages;
      lines.back().push_back(shared ? lines[request - 1][p] : pages.back());
      if (!shared) pages.pop_back();
    }
    for (int t = 0; t < in.columns; ++t) in.table.push_back(lines[request][t / page] * page + t % page);
  }
  in.slots.assign(in.step.tokens, wild);
  for (int row = 0; row < rows; ++row) in.requests.push_back(row < live ? live - row : wild);
  for (int row = 0; row < live; ++row) {
    in.base.push_back(prefix_pages * page + static_cast<std::int32_t>(random.below(page)));
    in.paths.emplace_back();
    for (int node = 0; node < in.step.nodes(row); ++node)
      in.slots[in.step.cu[row] + node] = in.table[in.requests[row] * in.columns + in.base[row] + node];
    if (in.step.nodes(row) == 0) continue;
    // from a random node up to the root
    const auto& parents = in.step.trees[row].parents;
    for (auto node = static_cast<std::int64_t>(random.below(in.step.nodes(row))); node >= 0;
         node = parents[node])
      in.paths.back().insert(in.paths.back().begin(), node);
  }
  return in;
}

}  // namespace stepgraph
