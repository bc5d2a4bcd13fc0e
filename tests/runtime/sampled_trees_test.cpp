// Sampled text with trees of drafts through the loop: it depends on the request's seed and number alone, and has the
// target's distribution, whatever the tree.
#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <string_view>

#include "runtime/speculative_loop.hpp"
#include "tests/reference/sampling.hpp"
#include "tests/runtime/draft_fixture.hpp"
#include "tests/runtime/wanted_text.hpp"

using namespace stepgraph;

namespace {

/// The target's logits after any text, by the reference; what was asked before is remembered.
class known_logits {
 public:
  explicit known_logits(const llama::llama_weights& weights) : model_(weights) {}

  const std::vector<float>& after(const text& history) {
    const auto [found, fresh] = known_.try_emplace(history);
    if (fresh) {
      model_.reset();
      for (const std::int32_t token : history) found->second = model_.forward(token);
    }
    return found->second;
  }

  /// The `count` most probable tokens after `history`.
  text best(const text& history, int count) {
    const std::vector<float>& logits = after(history);
    text ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::partial_sort(ids, ids.begin() + count, [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    ids.resize(static_cast<std::size_t>(count));
    return ids;
  }

 private:
  reference::llama_reference model_;
  std::map<text, std::vector<float>> known_;
};

enum class tree_kind { good, bad };

/// Trees that depend on the text alone. Good: the three best tokens, and under the first two of them the two best
/// again. Bad: what the target hardly ever says, siblings that are the same, and a good token last of all.
host_drafter trees_of(known_logits& target, tree_kind kind) {
  return [&target, kind](std::span<const std::int32_t> given, draft_proposal proposal) {
    const text history(given.begin(), given.end());
    const text first = target.best(history, 3);
    text tokens, parents;
    if (kind == tree_kind::good) {
      tokens = first;
      parents = {0, 0, 0};
      for (int node = 1; node <= 2; ++node) {
        text longer = history;
        longer.push_back(first[static_cast<std::size_t>(node - 1)]);
        for (const std::int32_t token : target.best(longer, 2)) {
          tokens.push_back(token);
          parents.push_back(node);
        }
      }
    } else {
      const auto odd = static_cast<std::int32_t>((history.size() * 37 + std::size_t(history.back())) % 500);
      tokens = {odd, odd, first[2], first[2], odd, first[0]};
      parents = {0, 0, 0, 0, 3, 0};
    }
    const auto count = static_cast<int>(std::min(tokens.size(), proposal.tokens.size()));
    std::copy_n(tokens.begin(), count, proposal.tokens.begin());
    std::copy_n(parents.begin(), count, proposal.parents.begin());
    return count;
  };
}

constexpr int nodes = 7;

/// Few buckets, for what is captured with trees is much: with three rows there is a choice of them.
executor_options buckets(int rows) {
  if (rows != 3)
    return {.row_buckets = bucket_policy::exactly({rows}),
            .token_buckets = bucket_policy::exactly({std::max(16, rows * (nodes + 1))})};
  return {.row_buckets = bucket_policy::exactly({1, 3}), .token_buckets = bucket_policy::exactly({8, 24})};
}

}  // namespace

TEST_CASE(
    "sampled trees: the same seed gives the same text, whatever the batch, the bucket, and how far ahead "
    "the host runs") {
  const tiny_with_draft t;
  known_logits target(t.weights);
  reference::random_integers random(test_seed());
  std::vector<wanted_text> all;
  for (int i = 0; i < (test_small() ? 3 : 9); ++i)
    all.push_back({random_prompt(random, static_cast<int>(random.between(1, 12)), 509),
                   static_cast<int>(random.between(2, test_small() ? 5 : 16)),
                   {.temperature = i % 4 == 3 ? 0.0f : 0.7f + 0.1f * float(random.below(8)),
                    .top_k = random.one_in(2) ? 8 : 0,
                    .top_p = random.one_in(2) ? 0.9f : 1.0f,
                    .seed = static_cast<std::uint64_t>(random.below(1000)),
                    .request = std::uint64_t(i) + 1}});
  const auto known = trees_of(target, tree_kind::good);
  for (const auto& drafts :
       {std::pair<const char*, draft_source>{
            "the caller's", {.from = draft_source::where::host, .propose = known, .trees = true}},
        {"looked up", draft_source::prompt_lookup(3)}}) {
    CAPTURE(drafts.first);
    std::vector<text> first;
    std::uint64_t accepted = 0;
    for (const int rows : {1, 3, 8}) {
      if (test_small() && rows == 8) continue;
      CAPTURE(rows);
      step_executor executor = t.executor(draft_setup{.rows = rows,
                                                      .most = nodes,
                                                      .sampled = true,
                                                      .trees = true,
                                                      .draft = false,
                                                      .page_size = rows == 3 ? 1 : 4,
                                                      .poison = rows == 3,
                                                      .step_tokens = rows * (nodes + 1),
                                                      .options = buckets(rows)});
      executor.capture();
      // what is replayed twice has replayed more graphs before the second time
      for (const bool ahead : {true, false, true})
        for (const bool eager : {false, true}) {
          if (eager && (ahead || rows == 8)) continue;
          const std::vector<text> texts =
              texts_of(executor, all,
                       {.drafts = drafts.second, .draft_length = nodes, .run_ahead = ahead, .eager = eager},
                       &accepted);
          if (first.empty()) first = texts;
          CHECK(texts == first);
        }
    }
    if (drafts.first == std::string_view("the caller's")) CHECK((accepted > 0 || test_small()));
    // greedy rows beside them have plain decoding's text
    step_executor plain = t.tiny::executor(1);
    plain.capture();
    for (std::size_t i = 3; i < all.size(); i += 4)
      CHECK(first[i] == text_of(plain, all[i].prompt, all[i].length));
  }
}

TEST_CASE("sampled trees: the text has the target's distribution, with good trees and with bad ones" *
          doctest::skip(test_small())) {
  // the first three tokens of many requests, top-k 3, against the reference's probabilities; the requests go on, so
  // that no tree is cut by what is left
  const int requests = 2500, length = 10;
  const text prompt{11, 4, 200, 37};
  const reference::sampling_rule rule{.temperature = 1.5, .top_k = 3};
  const tiny_with_draft t;
  known_logits target(t.weights);
  std::vector<text> outcomes;
  std::vector<double> p;
  const auto grow = [&](auto& self, text tokens, double probability) -> void {
    if (tokens.size() == 3) {
      outcomes.push_back(tokens);
      p.push_back(probability);
      return;
    }
    text history = prompt;
    history.insert(history.end(), tokens.begin(), tokens.end());
    const std::vector<double> next = reference::target_distribution(target.after(history), rule).p;
    for (std::size_t id = 0; id < next.size(); ++id)
      if (next[id] > 0) {
        text longer = tokens;
        longer.push_back(static_cast<std::int32_t>(id));
        self(self, longer, probability * next[id]);
      }
  };
  grow(grow, {}, 1.0);
  REQUIRE(outcomes.size() == 27);
  std::uint64_t accepted[2] = {};
  for (const tree_kind kind : {tree_kind::good, tree_kind::bad}) {
    CAPTURE(static_cast<int>(kind));
    step_executor executor = t.executor(draft_setup{
        .rows = 32, .most = nodes, .sampled = true, .trees = true, .draft = false, .options = buckets(32)});
    executor.capture();
    const host_drafter all_trees = trees_of(target, kind);
    speculative_loop loop(
        executor, {.drafts = {.from = draft_source::where::host,
                              // later tokens are not counted
                              .propose =
                                  [&](std::span<const std::int32_t> history, draft_proposal proposal) {
                                    return history.size() > prompt.size() + 3 ? 0
                                                                              : all_trees(history, proposal);
                                  },
                              .trees = true},
                   .draft_length = nodes});
    std::vector<heard> got(requests);
    for (heard& each : got)
      submit(loop, prompt, length, each,
             {.temperature = 1.5f, .top_k = 3, .seed = test_seed() + static_cast<std::uint64_t>(kind)});
    loop.run();
    CHECK_FALSE(executor.fault());
    std::vector<std::int64_t> counts(outcomes.size(), 0);
    for (const heard& each : got) {
      REQUIRE(each.tokens.size() == length);
      const auto found = std::ranges::find(outcomes, text(each.tokens.begin(), each.tokens.begin() + 3));
      REQUIRE(found != outcomes.end());
      ++counts[static_cast<std::size_t>(found - outcomes.begin())];
    }
    const double chi = reference::chi_square(counts, p), limit = reference::chi_square_limit(p, requests);
    MESSAGE("chi-square ", chi, ", limit ", limit, ", ", loop.statistics().accepted, " drafts accepted");
    CHECK(chi < limit);
    accepted[static_cast<int>(kind)] = loop.statistics().accepted;
  }
  CHECK(accepted[0] > 2 * requests);
  CHECK(accepted[1] > 0);
  CHECK(accepted[1] < accepted[0]);
}
