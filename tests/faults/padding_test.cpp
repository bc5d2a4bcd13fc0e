// Dead rows, buckets and the sizes of buffers: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "graphs/error.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

namespace {

/// A body whose steps do nothing but emit token 0, and which shows the buffers that it was given.
struct seen_step {
  std::optional<step_context> context;

  step_definition definition(step_kind kind = step_kind::extend) {
    return {.kind = kind,
            .variant = 0,
            .body =
                [this](const step_context& step) {
                  context = step;
                  step.stream.fill(step.next_token, 0, sizeof(std::int32_t) * step.key.rows);
                },
            .scratch_bytes = {}};
  }
};

constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

step_limits limits_of(int rows) {
  return {.max_rows = rows,
          .max_step_tokens = rows * 4,
          .max_requests = rows,
          .max_context = 256,
          .page_size = 4,
          .vocab_size = 100};
}

std::vector<std::int32_t> read(step_executor& executor, const std::int32_t* from, int count) {
  std::vector<std::int32_t> values(count);
  executor.stream().copy(values.data(), from, sizeof(std::int32_t) * count);
  executor.stream().synchronize();
  return values;
}

}  // namespace

TEST_CASE("pad-shrink: whatever the rows before them left, dead rows and tokens are harmless") {
  seen_step seen;
  step_executor executor(test_device(), limits_of(8), layout, {seen.definition()},
                         {.row_buckets = bucket_policy::exactly({8}),
                          .token_buckets = bucket_policy::exactly({32}),
                          .poison = true});
  executor.capture();
  std::vector<request_id> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(executor.open());
  const std::vector<std::int32_t> tokens{7, 8, 9};
  for (int live = 8; live >= 0; --live) {
    std::vector<step_row> rows;
    for (int r = 0; r < live; ++r)
      rows.push_back({.request = requests[8 - live + r], .tokens = 3, .token_ids = tokens});
    executor.wait(*executor.replay(step_kind::extend, rows));
    const step_context& at = *seen.context;
    const auto counts = read(executor, at.query_counts, 8), lengths = read(executor, at.cache_seqlens, 8);
    const auto lines = read(executor, at.requests, 8), last = read(executor, at.last_row, 8);
    for (int r = live; r < 8; ++r) {
      CHECK(counts[r] == 0);
      CHECK(lengths[r] == 0);
      CHECK(lines[r] == 0);
      CHECK(last[r] == 0);
    }
    const auto ids = read(executor, at.token_ids, 32), positions = read(executor, at.positions, 32);
    const auto slots = read(executor, at.out_cache_loc, 32), causal = read(executor, at.causal_length, 32);
    for (int t = live * 3; t < 32; ++t) {
      CHECK(ids[t] == 0);
      CHECK(positions[t] == 0);
      CHECK(slots[t] == 0);
      CHECK(causal[t] == 0);
    }
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE("pad-capacity: buffers have room for the bucket, not only for the rows allowed") {
  seen_step seen;
  step_executor executor(test_device(), limits_of(100), layout, {seen.definition(step_kind::decode)},
                         {.row_buckets = bucket_policy::exactly({64, 112}), .poison = true});
  executor.capture();
  CHECK(seen.context->key.rows == 64);  // captured last
  for (const char* name : {"requests", "query_counts", "seq_lens", "row_status", "last_row", "cache_seqlens",
                           "next_token", "accept_count", "emit_count", "cache_advance"}) {
    const auto& all = executor.carvings();
    const auto found = std::ranges::find(all, std::string(name), &carving_info::name);
    REQUIRE(found != all.end());
    CHECK_MESSAGE(found->bytes >= 112 * sizeof(std::int32_t), name);
  }
  std::vector<step_row> rows;
  const std::vector<std::int32_t> token{5};
  for (int i = 0; i < 100; ++i) rows.push_back({.request = executor.open(), .tokens = 1, .token_ids = token});
  for (const row_result& row : executor.wait(*executor.replay(step_kind::decode, rows))) {
    CHECK(row.status == 0);
    CHECK(row.length == 1);
  }
}

TEST_CASE("pad-scope: dead rows of a bucket change no row of another") {
  seen_step seen;
  step_executor executor(test_device(), limits_of(8), layout, {seen.definition(step_kind::decode)},
                         {.poison = true});
  executor.capture();
  std::vector<request_id> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(executor.open());
  std::vector<int> length(8, 0);
  const std::vector<std::int32_t> token{5};
  reference::random_integers random(test_seed());
  // all rows, then fewer without the first, whose line dead rows name, then all again; then any
  const std::vector<std::pair<int, int>> begin{{8, 0}, {5, 3}, {8, 0}, {3, 2}, {8, 0}};
  for (int i = 0; i < 5 + test_rounds(60); ++i) {
    const int live = i < 5 ? begin[i].first : static_cast<int>(random.between(1, 8));
    const int from = i < 5 ? begin[i].second : static_cast<int>(random.below(8));
    std::vector<step_row> rows;
    for (int r = 0; r < live; ++r)
      rows.push_back({.request = requests[(from + r) % 8], .tokens = 1, .token_ids = token});
    const auto results = executor.wait(*executor.replay(step_kind::decode, rows));
    for (int r = 0; r < live; ++r) CHECK(results[r].length == ++length[(from + r) % 8]);
  }
}
