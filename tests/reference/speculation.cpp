#include "tests/reference/speculation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/reference/philox.hpp"

namespace stepgraph::reference {
namespace {

std::vector<std::int64_t> children(const draft_tree& tree, std::int64_t node) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 1; i < tree.parents.size(); ++i)
    if (tree.parents[i] == node) out.push_back(static_cast<std::int64_t>(i));
  return out;
}

}  // namespace

std::vector<std::int64_t> depths(const std::vector<std::int64_t>& parents) {
  std::vector<std::int64_t> out;
  for (std::size_t node = 0; node < parents.size(); ++node) {
    std::int64_t steps = 0;
    for (auto at = static_cast<std::int64_t>(node); at != 0; at = parents[at]) ++steps;
    out.push_back(steps);
  }
  return out;
}

std::vector<std::uint64_t> ancestor_sets(const std::vector<std::int64_t>& parents) {
  std::vector<std::uint64_t> out;
  for (std::size_t node = 0; node < parents.size(); ++node) {
    std::uint64_t set = 1;
    for (auto at = static_cast<std::int64_t>(node); at != 0; at = parents[at]) set += std::uint64_t{1} << at;
    out.push_back(set);
  }
  return out;
}

accepted greedy_accept(const draft_tree& tree, const std::vector<std::optional<std::int64_t>>& argmax) {
  accepted out;
  out.path = {0};
  for (;;) {
    const auto& best = argmax[out.path.back()];
    if (!best) {
      out.ended = true;
      return out;
    }
    out.emitted.push_back(*best);
    const auto next = children(tree, out.path.back());
    const auto kept =
        std::find_if(next.begin(), next.end(), [&](std::int64_t i) { return tree.tokens[i] == *best; });
    if (kept == next.end()) return out;
    out.path.push_back(*kept);
  }
}

accepted rejection_accept(const draft_tree& tree, const std::vector<std::vector<double>>& p,
                          const std::vector<std::vector<double>>& q, const coins& from) {
  constexpr std::uint32_t accept_coin = 1, residual_draw = 2, bonus_draw = 3;
  const auto depth = depths(tree.parents);
  accepted out;
  out.path = {0};
  for (;;) {
    const std::int64_t node = out.path.back();
    if (p[node].empty()) {
      out.ended = true;
      return out;
    }
    std::vector<double> current = p[node];
    const auto decided = static_cast<std::uint32_t>(from.position + depth[node] + 1);
    std::int64_t kept = -1;
    double last_coin = -1;
    for (const std::int64_t child : children(tree, node)) {
      const std::int64_t x = tree.tokens[child];
      const bool in_vocabulary = x >= 0 && x < static_cast<std::int64_t>(current.size());
      const double qx = in_vocabulary && !q[child].empty() ? q[child][x] : 0.0;
      const bool sampled = qx > 0 && qx <= 1;
      const double px = in_vocabulary ? current[x] : 0.0;
      const double probability = sampled ? std::min(1.0, px / qx) : px;
      const double u =
          uniform(from.seed, from.request, decided, accept_coin, static_cast<std::uint32_t>(child));
      out.margin = std::min(out.margin, std::fabs(u - probability));
      if (u < probability) {
        kept = child;
        break;
      }
      last_coin = u;
      std::vector<double> left = current;
      if (sampled) {
        for (std::size_t id = 0; id < left.size(); ++id) left[id] = std::max(left[id] - q[child][id], 0.0);
      } else if (in_vocabulary) {
        left[x] = 0;
      }
      const double total = std::accumulate(left.begin(), left.end(), 0.0);
      if (total > 0) {
        for (double& value : left) value /= total;
        current = left;
      }
    }
    if (kept >= 0) {
      out.emitted.push_back(tree.tokens[kept]);
      out.path.push_back(kept);
      continue;
    }
    const bool refused = last_coin >= 0;
    double u = uniform(from.seed, from.request, decided, refused ? residual_draw : bonus_draw,
                       static_cast<std::uint32_t>(node));
    if (refused && from.same_coin) u = last_coin;
    const drawn last = draw(current, u);
    out.margin = std::min(out.margin, last.margin);
    out.emitted.push_back(last.id);
    return out;
  }
}

std::vector<std::int64_t> committed_order(std::int64_t nodes, const std::vector<std::int64_t>& path) {
  std::vector<std::int64_t> order = path;
  for (std::int64_t node = 0; node < nodes; ++node)
    if (std::find(path.begin(), path.end(), node) == path.end()) order.push_back(node);
  return order;
}

finish_output finish(const finish_input& in) {
  finish_output out;
  if (in.budget && *in.budget <= 0) return {0, ending::token_budget};
  for (const std::int64_t token : in.emitted) {
    ++out.kept;
    if (std::find(in.end_ids.begin(), in.end_ids.end(), token) != in.end_ids.end())
      return {out.kept, ending::end_of_sequence};
    if (in.budget && out.kept == *in.budget) return {out.kept, ending::token_budget};
    // the next step would store this token at its position
    if (in.base + out.kept >= in.max_context) return {out.kept, ending::context_limit};
  }
  if (in.fault) return {out.kept, ending::fault};
  if (in.host_stop) return {out.kept, ending::host_stop};
  return out;
}

}  // namespace stepgraph::reference
