// Attention over rows of tens of thousands of cached tokens, with each of its options. In small tests there are none,
// and on the host none where a chunk sees them: it would take minutes.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/attention/split_attention.hpp"
#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

template <class T>
constexpr double tolerance_of = std::is_same_v<T, f16> ? 2e-3 : 1e-2;

/// One set of random contents by the plan that the shape has, and on a GPU by every kernel there is for it. The oracle
/// looks at four (token, head) pairs of each.
template <class T>
void compare(ragged_shape s, const std::vector<ragged_row>& rows, int head_size) {
  CAPTURE(test_seed());
  CAPTURE(head_size);
  s.head_size = head_size;
  s.heads = 2;
  s.kv_heads = 1;
  s.rows = static_cast<int>(rows.size());
  s.tokens = 0;
  for (const auto& row : rows) {
    s.longest = std::max(s.longest, row.length);
    s.tokens += row.tokens;
  }
  const stream at(test_device());
  ragged_batch<T> batch(at, s, test_seed());
  batch.set(rows);
  paged_attention(at, batch.params());
  REQUIRE(batch.check(tolerance_of<T>, 4) == "");
#if STEPGRAPH_CUDA
  if (test_device().is_host()) return;
  const auto on = detail::split_device::of(at.where());
  for (const detail::split_options& options :
       {detail::split_options{.warpgroups = 0},
        detail::split_options{.min_tiles = 2, .warps = 8, .warpgroups = 0},
        detail::split_options{.warpgroups = 1}}) {
    if (options.warpgroups == 1 && !on.warpgroups) continue;
    CAPTURE(options.warps);
    CAPTURE(options.warpgroups);
    paged_attention_params params = batch.params();
    const device_vector<std::uint8_t> workspace(at, detail::plan_split(on, params, options).workspace_bytes,
                                                std::uint8_t{0});
    params.workspace = workspace.data();
    params.workspace_bytes = workspace.size();
    batch.clear_outputs();
    detail::split_attention_cuda(at, params, options);
    REQUIRE(batch.check(tolerance_of<T>, 4) == "");
  }
#endif
}

/// Rows around 40,000 tokens in one type and head size, around 128K in the other: together they are all of them.
void compare_long(const ragged_shape& s, int tokens) {
  if (test_small()) return;
  compare<f16>(s, {{tokens, 40000}, {1, 129}}, 64);
  compare<bf16>(s, {{1, 65}, {tokens, 40001}}, 128);
  compare<bf16>(s, {{tokens, 131072}}, 64);
  compare<f16>(s, {{tokens, 131071}, {2, 3}}, 128);
}

}  // namespace

TEST_CASE("attention at 40K and 128K: logit cap") {
  compare_long({.logit_cap = 3.0f}, 1);
}
TEST_CASE("attention at 40K and 128K: sliding windows, short, and longer than a row of 40K") {
  compare_long({.window = 700}, 1);
  compare_long({.window = 50000}, 2);
}
TEST_CASE("attention at 40K and 128K: attention sink, and all options at once") {
  compare_long({.sink = true}, 1);
  compare_long({.logit_cap = 2.0f, .window = 33333, .sink = true}, 3);
}
TEST_CASE("attention at 40K and 128K: verify of 8") {
  compare_long({}, 8);
}
TEST_CASE("attention at 40K and 128K: trees") {
  compare_long({.tree = true}, 16);
  compare_long({.window = 9, .tree = true}, 5);
}
TEST_CASE("attention at 40K and 128K: chunks") {
  if (test_device().is_host()) return;  // 130 tokens over 128K: a minute
  compare_long({}, 130);
  compare_long({.window = 20000, .sink = true}, 70);
}
