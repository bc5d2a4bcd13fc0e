#include "kernels/attention/paged_attention.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/reference/attention.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

struct shape {
  int rows = 3;
  int tokens = 8;
  int heads = 4;
  int kv_heads = 2;
  int head_size = 64;
  int page_shift = 4;
  int longest = 100;
  float logit_cap = 0;
  int window = 0;
  bool sink = false;
};

/// Random rows against the oracle. Every KV element that no live token may see is NaN, the table's tails are wild.
template <class T>
void compare(const shape& s, double tolerance, std::uint64_t seed) {
  CAPTURE(seed);
  CAPTURE(s.longest);
  reference::random_integers random(seed);
  const auto number = [&random] { return static_cast<float>(random.between(-2000, 2000)) / 1000.0f; };
  const std::int64_t page_size = std::int64_t{1} << s.page_shift;
  const std::int64_t columns = (s.longest + page_size - 1) / page_size + 3, pages = s.rows * columns + 1;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<T> keys(pages * page_size * s.kv_heads * s.head_size, from_float<T>(nan)), values = keys;
  std::vector<std::int32_t> table(s.rows * columns, 0x7f7f7f7f), row_of(s.tokens, 0), causal(s.tokens, 0);
  std::vector<std::int32_t> free(pages - 1);
  std::iota(free.begin(), free.end(), 1);
  for (std::size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[random.below(i)]);

  // the last two tokens are dead, one live token sees nothing; some tokens share a row
  std::vector<std::int64_t> length(s.rows, 0);
  for (int t = 0; t + 2 < s.tokens; ++t) {
    row_of[t] = static_cast<std::int32_t>(random.below(s.rows));
    causal[t] = t == 1 ? 0 : t == 0 ? s.longest : static_cast<std::int32_t>(random.between(1, s.longest));
    length[row_of[t]] = std::max<std::int64_t>(length[row_of[t]], causal[t]);
  }
  const auto element = [&](int row, std::int64_t position, int head, int d) {
    const std::int64_t page = table[row * columns + position / page_size];
    return ((page * page_size + position % page_size) * s.kv_heads + head) * s.head_size + d;
  };
  for (int row = 0; row < s.rows; ++row)
    for (std::int64_t position = 0; position < length[row]; ++position) {
      if (position % page_size == 0) {
        table[row * columns + position / page_size] = free.back();
        free.pop_back();
      }
      for (int head = 0; head < s.kv_heads; ++head)
        for (int d = 0; d < s.head_size; ++d) {
          keys[element(row, position, head, d)] = from_float<T>(number());
          values[element(row, position, head, d)] = from_float<T>(number());
        }
    }
  std::vector<T> query(s.tokens * s.heads * s.head_size);
  for (T& each : query) each = from_float<T>(number());
  std::vector<float> sink(s.heads);
  for (float& each : sink) each = number();

  const stream at(test_device());
  const device_vector<T> device_keys(at, keys), device_values(at, values), device_query(at, query);
  const device_vector<std::int32_t> device_table(at, table), device_row_of(at, row_of),
      device_causal(at, causal);
  const device_vector<float> device_sink(at, sink), lse(at, std::size_t(s.tokens) * s.heads, nan);
  const device_vector<T> output(at, query.size(), from_float<T>(nan));
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_size));
  paged_attention(at, {.type = type_of<T>,
                       .query = device_query.data(),
                       .output = output.data(),
                       .cache = {.keys = device_keys.data(),
                                 .values = device_values.data(),
                                 .page_stride = page_size * s.kv_heads * s.head_size,
                                 .token_stride = std::int64_t{s.kv_heads} * s.head_size,
                                 .head_stride = s.head_size,
                                 .pages = pages},
                       .page_table = device_table.data(),
                       .page_table_stride = columns,
                       .page_columns = columns,
                       .row_of = device_row_of.data(),
                       .causal_length = device_causal.data(),
                       .tokens = s.tokens,
                       .rows = s.rows,
                       .heads = s.heads,
                       .kv_heads = s.kv_heads,
                       .head_size = s.head_size,
                       .page_shift = s.page_shift,
                       .scale = scale,
                       .logit_cap = s.logit_cap,
                       .window = s.window,
                       .sink = s.sink ? device_sink.data() : nullptr,
                       .log_sum_exp = lse.data()});
  const auto got = output.get();
  const auto got_lse = lse.get();
  for (int t = 0; t < s.tokens; ++t)
    for (int head = 0; head < s.heads; ++head) {
      const int kv_head = head / (s.heads / s.kv_heads), row = row_of[t];
      const std::size_t first = (std::size_t(t) * s.heads + head) * s.head_size;
      reference::attention_case one{
          .query = {},
          .positions = causal[t],
          .visible = {},
          .key = [&](std::int64_t p, int d) { return to_float(keys[element(row, p, kv_head, d)]); },
          .value = [&](std::int64_t p, int d) { return to_float(values[element(row, p, kv_head, d)]); },
          .scale = scale,
          .logit_cap = s.logit_cap,
          .window = s.window,
          .has_sink = s.sink,
          .sink = sink[head]};
      for (int d = 0; d < s.head_size; ++d) one.query.push_back(to_float(query[first + d]));
      const auto want = reference::attention(one);
      double difference = 0, norm = 0;
      for (int d = 0; d < s.head_size; ++d) {
        const double value = to_float(got[first + d]);
        difference += (value - want.output[d]) * (value - want.output[d]);
        norm += want.output[d] * want.output[d];
      }
      if (causal[t] == 0) {
        REQUIRE(difference == 0);  // false for a NaN, too
        REQUIRE(got_lse[t * s.heads + head] == -std::numeric_limits<float>::infinity());
        continue;
      }
      REQUIRE(std::sqrt(difference) <= tolerance * std::sqrt(norm));
      REQUIRE(std::abs(got_lse[t * s.heads + head] - want.log_sum_exp) <= 1e-3);
    }
}

void compare_all(const shape& s, std::uint64_t seed) {
  compare<float>(s, 1e-5, seed);
  compare<f16>(s, 2e-3, seed);
  compare<bf16>(s, 1e-2, seed);
}

}  // namespace

TEST_CASE(
    "nan-tail, nan-empty: paged attention equals the oracle and reads nothing past a token's causal length") {
  for (const int longest : {1, 2, 15, 16, 17, 100, 700})
    for (const int head_size : {64, 128})
      compare_all({.head_size = head_size, .longest = longest}, test_seed() + longest);
}

TEST_CASE("page sizes from 1 to 1024 and any number of query heads per KV head") {
  compare_all({.heads = 9, .kv_heads = 3, .page_shift = 0}, test_seed());
  compare_all({.heads = 3, .kv_heads = 3, .page_shift = 6, .longest = 200}, test_seed());
  compare_all({.heads = 8, .kv_heads = 1, .page_shift = 10, .longest = 1500}, test_seed());
}

TEST_CASE("logit cap, sliding window and attention sink") {
  compare_all({.logit_cap = 3.0f}, test_seed());
  compare_all({.window = 1}, test_seed());
  compare_all({.longest = 300, .window = 37}, test_seed());
  compare_all({.sink = true}, test_seed());
  compare_all({.longest = 300, .logit_cap = 2.0f, .window = 64, .sink = true}, test_seed());
}

TEST_CASE("a page that is no page is not followed, and its row is reported") {
  const stream at(test_device());
  const int head_size = 64;
  const device_vector<float> cache(at, 2 * 16 * head_size, 1.0f), query(at, head_size, 1.0f),
      output(at, head_size, 0.0f);
  const device_vector<std::int32_t> table(at, {1, -1, 0x7f7f7f7f}), row_of(at, {0}), causal(at, {48}),
      taken(at, 1, 0), status(at, 1, 0);
  const buffer record(pinned_memory(test_device()), sizeof(fault_record));
  *record.as<fault_record>() = {};
  paged_attention(at, {.query = query.data(),
                       .output = output.data(),
                       .cache = {cache.data(), cache.data(), 16 * head_size, head_size, head_size, 2},
                       .page_table = table.data(),
                       .page_table_stride = 3,
                       .page_columns = 3,
                       .row_of = row_of.data(),
                       .causal_length = causal.data(),
                       .tokens = 1,
                       .rows = 1,
                       .heads = 1,
                       .kv_heads = 1,
                       .head_size = head_size,
                       .page_shift = 4,
                       .faults = {record.as<fault_record>(), taken.data(), status.data()}});
  CHECK(output.get()[0] == 1.0f);
  CHECK(status.get()[0] == static_cast<std::int32_t>(row_status::slot_out_of_range));
  CHECK(record.as<fault_record>()->op == static_cast<std::int32_t>(op_id::paged_attention));
}

TEST_CASE("paged attention refuses by name, and says what is supported") {
  const stream at(test_device());
  const device_vector<float> some(at, 64, 0.0f);
  const device_vector<std::int32_t> numbers(at, 4, 0);
  paged_attention_params params{.query = some.data(),
                                .output = some.data(),
                                .cache = {some.data(), some.data(), 64, 64, 64, 1},
                                .page_table = numbers.data(),
                                .page_table_stride = 1,
                                .page_columns = 1,
                                .row_of = numbers.data(),
                                .causal_length = numbers.data(),
                                .tokens = 1,
                                .rows = 1,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_size = 64};
  params.head_size = 96;
  CHECK_THROWS_WITH_AS(paged_attention(at, params),
                       doctest::Contains("head_size 96 is not supported, only 64 and 128"), invalid_argument);
  params.head_size = 64;
  params.heads = 3;
  params.kv_heads = 2;
  CHECK_THROWS_WITH_AS(paged_attention(at, params), doctest::Contains("2 KV heads do not divide 3"),
                       invalid_argument);
}
