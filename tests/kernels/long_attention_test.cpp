// Attention over rows of tens of thousands of cached tokens, with each of its options. There are none in small tests. The
// host takes one type and head size, 128K for decode alone and no chunks: the others would take it minutes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention/split_attention.hpp"
#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

template <class T>
constexpr double tolerance_of = std::is_same_v<T, f16> ? 2e-3 : 1e-2;

/// Contents that are made once and attended to with one set of options after another.
template <class T>
class long_rows {
 public:
  long_rows(const std::vector<ragged_row>& rows, int head_size)
      : batch_(at_, shape_of(rows, head_size), test_seed()) {
    batch_.set(rows);
  }

  /// By the plan that the shape has, against the oracle, which looks at about `pairs` (token, head) pairs; on a GPU then
  /// by every kernel there is for it, against that, whole.
  void compare(const ragged_shape& options, int pairs = 2) {
    CAPTURE(test_seed());
    CAPTURE(options.logit_cap);
    CAPTURE(options.window);
    CAPTURE(options.sink);
    CAPTURE(options.tree);
    batch_.set_options(options);
    paged_attention(at_, batch_.params());
    REQUIRE(batch_.check(tolerance_of<T>, pairs) == "");
#if STEPGRAPH_CUDA
    if (test_device().is_host()) return;
    const auto want = batch_.output();
    const auto lse = batch_.log_sum_exp();
    const auto on = detail::split_device::of(at_.where());
    for (const detail::split_options& by :
         {detail::split_options{.warpgroups = 0},
          detail::split_options{.min_tiles = 2, .warps = 8, .warpgroups = 0},
          detail::split_options{.warpgroups = 1}}) {
      if (by.warpgroups == 1 && !on.warpgroups) continue;
      CAPTURE(by.warps);
      CAPTURE(by.warpgroups);
      paged_attention_params params = batch_.params();
      const device_vector<std::uint8_t> workspace(at_, detail::plan_split(on, params, by).workspace_bytes,
                                                  std::uint8_t{0});
      params.workspace = workspace.data();
      params.workspace_bytes = workspace.size();
      batch_.clear_outputs();
      detail::split_attention_cuda(at_, params, by);
      const auto got = batch_.output();
      const auto got_lse = batch_.log_sum_exp();
      for (std::size_t pair = 0; pair < lse.size(); ++pair) {
        double difference = 0, norm = 0;
        for (int d = 0; d < params.head_size; ++d) {
          const double one = to_float(want[pair * params.head_size + d]);
          difference += std::pow(to_float(got[pair * params.head_size + d]) - one, 2);
          norm += one * one;
        }
        REQUIRE(std::sqrt(difference) <= 2 * tolerance_of<T> * std::sqrt(norm));
        REQUIRE((got_lse[pair] == lse[pair] || std::abs(got_lse[pair] - lse[pair]) <= 2e-3));
      }
    }
#endif
  }

 private:
  static ragged_shape shape_of(const std::vector<ragged_row>& rows, int head_size) {
    ragged_shape s{.rows = static_cast<int>(rows.size()),
                   .tokens = 0,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_size = head_size};
    for (const auto& row : rows) {
      s.longest = std::max(s.longest, row.length);
      s.tokens += row.tokens;
    }
    return s;
  }

  stream at_{test_device()};
  ragged_batch<T> batch_;
};

template <class Test>
void each_type(const Test& test) {
  if (test_small()) return;
  test(bf16{}, 64);
  if (test_device().is_host()) return;
  test(f16{}, 128);
}

}  // namespace

TEST_CASE("attention at 40K and 128K: decode with logit cap, windows short and long, sink, all at once") {
  each_type([]<class T>(T, int head_size) {
    long_rows<T> rows({{1, 131072}, {1, 40000}, {1, 129}}, head_size);
    rows.compare({.logit_cap = 3.0f});
    rows.compare({.window = 700}, 6);
    rows.compare({.window = 50000});  // longer than the second row
    rows.compare({.sink = true});
    rows.compare({.logit_cap = 2.0f, .window = 33333, .sink = true});
  });
}

TEST_CASE("attention at 40K and 128K: verify of 8 and of trees, with the same options") {
  each_type([]<class T>(T, int head_size) {
    const int longest = test_device().is_host() ? 50001 : 131071;
    long_rows<T> rows({{8, longest}, {16, 40001}, {0, 70}, {2, 3}}, head_size);
    rows.compare({});
    rows.compare({.logit_cap = 3.0f, .sink = true});
    rows.compare({.window = 700}, 6);
    rows.compare({.tree = true}, 4);
    rows.compare({.logit_cap = 2.0f, .window = 9, .sink = true, .tree = true}, 4);
  });
}

TEST_CASE("attention at 40K and 128K: chunks, with the same options") {
  if (test_device().is_host()) return;
  each_type([]<class T>(T, int head_size) {
    long_rows<T> rows({{130, 131072}, {1, 129}, {70, 40000}}, head_size);
    rows.compare({});
    rows.compare({.logit_cap = 3.0f});
    rows.compare({.window = 20000, .sink = true});
  });
}
