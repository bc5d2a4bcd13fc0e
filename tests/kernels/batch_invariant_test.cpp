// A row's bits, whatever it shares its step with and whatever the step was captured for.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

template <class T>
constexpr double tolerance_of = std::is_same_v<T, f16> ? 2e-3 : 1e-2;

/// The bits of a row alone and beside others, in buckets and captured widths of all kinds: always the same.
template <class T>
void check_invariant(int head_size, bool tree) {
  const bool every = std::is_same_v<T, bf16> && head_size == 128 && !tree && !test_small();
  const int heads = every ? 8 : 4, kv_heads = heads / 4;
  const stream at(test_device());
  const ragged_row watched = {5, test_small() ? 700 : 2900, 99};
  struct step {
    std::vector<ragged_row> rows;
    int bucket;  // rows and tokens more than there are
    int width;   // cached tokens that the table has columns for
  };
  std::vector<step> steps{
      {{watched}, 0, 3000}, {{watched}, 1, 100000}, {{{8, 700}, {1, 1}, watched}, 40, 5000}};
  if (!test_small()) steps.push_back({{{1, 5000}, watched}, 1, 100000});
  if (every)
    for (const std::vector<ragged_row>& rows : {std::vector<ragged_row>{{1, 5000}, watched},
                                                {{0, 10}, {8, 700}, {1, 1}, watched, {3, 513}},
                                                {{8, 4999}, {8, 5000}, watched}})
      for (const int bucket : {0, 1, 40}) steps.push_back({rows, bucket, bucket == 0 ? 100000 : 5000});
  std::vector<std::uint16_t> bits;
  for (const auto& [rows, bucket, width] : steps) {
    int first = 0, tokens = bucket, longest = 0;
    for (const auto& row : rows) {
      if (row.key < 0 && tokens - bucket == first) first += row.tokens;
      tokens += row.tokens;
      longest = std::max(longest, row.length);
    }
    CAPTURE(longest);
    CAPTURE(bucket);
    CAPTURE(width);
    ragged_batch<T> batch(at,
                          {.rows = static_cast<int>(rows.size()) + bucket / 20,
                           .tokens = tokens,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .head_size = head_size,
                           .longest = longest,
                           .width = width,
                           .tree = tree,
                           .batch_invariant = true},
                          7);
    batch.set(rows);
    paged_attention(at, batch.params());
    REQUIRE(batch.check(tolerance_of<T>, 4) == "");
    std::vector<std::uint16_t> now;
    const auto output = batch.output();
    for (int i = 0; i < watched.tokens * heads * head_size; ++i)
      now.push_back(output[first * heads * head_size + i].bits);
    if (bits.empty()) bits = now;
    REQUIRE(now == bits);
  }
}

}  // namespace

TEST_CASE_TEMPLATE(
    "batch-invariant: a row's bits depend neither on its companions nor on the bucket nor on the captured "
    "width",
    T, f16, bf16) {
  for (const int head_size : {64, 128})
    for (const bool tree : {false, true}) {
      CAPTURE(head_size);
      CAPTURE(tree);
      check_invariant<T>(head_size, tree);
    }
}
