#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "bench/replay/node_groups.hpp"
#include "bench/replay/simulated_accept.hpp"
#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;
using namespace stepgraph::bench;

namespace {

/// Rows of a verify step with 1 to 5 tokens each, the last row dead, and what a simulated accept leaves.
struct accept_fixture {
  static constexpr int rows = 6, live = 5, most = 5;

  explicit accept_fixture(stream_ref at)
      : at(at),
        live_rows(at, std::vector<std::int32_t>{live}),
        cu(at, std::vector<std::int32_t>{0, 5, 10, 13, 14, 14, 14}),
        tokens(at, ids()),
        rounds(at, std::vector<std::uint32_t>{0}),
        accepted(at, rows, -7),
        emitted(at, rows, -7),
        advance(at, rows, -7),
        next(at, rows, -7),
        emit_tokens(at, rows * most, -7),
        path(at, rows * most, -7) {}

  static std::vector<std::int32_t> ids() {
    std::vector<std::int32_t> all(14);
    std::iota(all.begin(), all.end(), 100);
    return all;
  }
  simulated_accept_params params(const device_vector<float>& cumulative, std::uint64_t seed) const {
    return {.verify = {.live_rows = live_rows.data(),
                       .rows = rows,
                       .max_query_count = most,
                       .cu_seqlens_q = cu.data(),
                       .token_ids = tokens.data()},
            .cumulative = cumulative.data(),
            .seed = seed,
            .rounds = rounds.data(),
            .result = {.accept_count = accepted.data(),
                       .emit_count = emitted.data(),
                       .cache_advance = advance.data(),
                       .next_token = next.data(),
                       .emit_tokens = emit_tokens.data(),
                       .path = path.data(),
                       .stride = most}};
  }

  stream_ref at;
  device_vector<std::int32_t> live_rows, cu, tokens;
  device_vector<std::uint32_t> rounds;
  device_vector<std::int32_t> accepted, emitted, advance, next, emit_tokens, path;
};

}  // namespace

TEST_CASE("a simulated accept of a fixed length keeps that many drafts, or as many as a row has") {
  const stream at(test_device());
  const accept_fixture f(at);
  const device_vector<float> cumulative(at, accept_rule::fixed(3, 4).cumulative());
  simulated_accept(at, f.params(cumulative, 1));
  CHECK(f.accepted.get() == std::vector<std::int32_t>{3, 3, 2, 0, 0, 0});
  CHECK(f.emitted.get() == std::vector<std::int32_t>{4, 4, 3, 1, 0, 0});
  CHECK(f.advance.get() == std::vector<std::int32_t>{4, 4, 3, 1, 0, 0});
  // drafts in order, then the bonus; nothing for the row without tokens, a harmless 0 for the dead one
  const auto tokens = f.emit_tokens.get();
  CHECK(std::vector(tokens.begin() + 5, tokens.begin() + 10) ==
        std::vector<std::int32_t>{106, 107, 108, 105, -7});
  CHECK(f.next.get() == std::vector<std::int32_t>{100, 105, 110, 113, -1, 0});
}

TEST_CASE("replays of a simulated accept draw anew, and their lengths follow the rule") {
  const stream at(test_device());
  const accept_fixture f(at);
  const accept_rule rule = accept_rule::rate(0.7, 4);
  const device_vector<float> cumulative(at, rule.cumulative());
  const graph_exec exec = capture(at, [&](stream_ref s) {
                            simulated_accept(s, f.params(cumulative, test_seed()));
                          }).instantiate();
  const int replays = test_rounds(2000);
  std::vector<int> counts(5, 0);
  std::vector<std::int32_t> before;
  bool changed = false;
  for (int i = 0; i < replays; ++i) {
    exec.launch(at);
    const auto kept = f.accepted.get();
    for (const int row : {0, 1}) ++counts[kept[row]];
    changed = changed || (!before.empty() && kept != before);
    before = kept;
  }
  CHECK(f.rounds.get()[0] == static_cast<std::uint32_t>(replays));
  if (test_small()) return;
  CHECK(changed);
  double chi = 0;
  for (int kept = 0; kept <= 4; ++kept) {
    const double expected = 2.0 * replays * rule.probability[kept];
    chi += (counts[kept] - expected) * (counts[kept] - expected) / expected;
  }
  CHECK(chi < 23.5);  // 4 degrees of freedom: one run in 10,000
}

TEST_CASE("accept rules are distributions with the mean they say") {
  CHECK(accept_rule::fixed(2, 5).mean() == doctest::Approx(2));
  CHECK(accept_rule::rate(1, 5).mean() == doctest::Approx(5));
  CHECK(accept_rule::rate(0, 5).mean() == doctest::Approx(0));
  CHECK(accept_rule::rate(0.5, 2).mean() == doctest::Approx(0.5 + 0.25));
  CHECK(accept_rule::weights({1, 0, 3}, 4).mean() == doctest::Approx(1.5));
  CHECK(accept_rule::rate(0.3, 7).cumulative().back() == doctest::Approx(1));
  CHECK_THROWS_AS(accept_rule::fixed(6, 5), invalid_argument);
  CHECK_THROWS_AS(accept_rule::weights({0, 0}, 4), invalid_argument);
}

TEST_CASE("nodes are told apart by name, kernels by their mangled one") {
  CHECK(group_of("step_prologue") == node_group::prologue);
  CHECK(group_of("decode_metadata") == node_group::metadata);
  CHECK(group_of("paged_attention") == node_group::attention);
  CHECK(group_of("greedy_sample") == node_group::sampling);
  CHECK(group_of("greedy_accept") == node_group::speculation);
  CHECK(group_of("simulated_accept") == node_group::speculation);
  CHECK(group_of("top_k_to_slots") == node_group::indices);
  CHECK(group_of("step_epilogue") == node_group::epilogue);
  CHECK(group_of("feed_forward") == node_group::model);
  CHECK(group_of("_ZN9stepgraph9run_tilesINS_16step_prologue_opELb0EEEvT_") == node_group::prologue);
  CHECK(group_of("_ZN9stepgraph9run_tilesINS_24plain_decode_metadata_opELb0EEEvT_") == node_group::metadata);
  CHECK(group_of("") == node_group::model);  // cuBLAS
}
