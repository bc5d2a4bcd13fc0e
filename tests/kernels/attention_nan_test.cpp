// What a row sees and is not a number comes out as NaN, in its output and its log-sum-exp, so that its logits say
// so; the rows beside it do not notice.
#include <doctest/doctest.h>

#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

template <class T>
void check_nan(ragged_shape s, const std::vector<ragged_row>& rows, double tolerance) {
  const stream at(test_device());
  for (const int head_size : {64, 128}) {
    s.head_size = head_size;
    // the whole of a row, a token at its beginning, at its end and between, alone among numbers
    for (const int only : {-1, 0, rows[1].length / 2, rows[1].length - rows[1].tokens}) {
      CAPTURE(head_size);
      CAPTURE(only);
      ragged_batch<T> batch(at, s, test_seed());
      batch.set(rows);
      batch.poison(1, only);
      paged_attention(at, batch.params());
      REQUIRE(batch.check(tolerance, 40) == "");
    }
  }
}

void check_nan_of_all(ragged_shape s, const std::vector<ragged_row>& rows) {
  CAPTURE(test_seed());
  for (const auto& row : rows) {
    s.longest = std::max(s.longest, row.length);
    s.tokens += row.tokens;
  }
  s.rows = static_cast<int>(rows.size());
  check_nan<f16>(s, rows, 2e-3);
  check_nan<bf16>(s, rows, 1e-2);
  s.workspace = false;
  check_nan<float>(s, rows, 5e-5);
}

}  // namespace

TEST_CASE("attention: a NaN that a row sees comes out of decode, verify and chunks, whatever splits them") {
  const ragged_shape plain{.tokens = 0, .heads = 4, .kv_heads = 1};
  ragged_shape with_all = plain, tree = plain, alone = plain;
  with_all.logit_cap = 30.0f;
  with_all.sink = true;
  tree.tree = true;
  alone.batch_invariant = true;
  for (const ragged_shape& s : {plain, with_all, tree, alone}) {
    CAPTURE(s.sink);
    CAPTURE(s.tree);
    CAPTURE(s.batch_invariant);
    check_nan_of_all(s, {{1, 70}, {1, 1000}, {1, 3}});
    check_nan_of_all(s, {{8, 70}, {8, 600}, {0, 30}, {5, 9}});
    if (!s.tree && !test_small()) check_nan_of_all(s, {{40, 75}, {130, 400}, {1, 90}});
  }
}
