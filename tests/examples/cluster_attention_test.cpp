// The example's attention of small steps on a GPU, against plain loops in double: ragged rows, rows of no
// tokens, fresh rows, page edges, poison past every row.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "examples/llama/cluster_attention.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/attention.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

struct ragged {
  std::vector<std::int32_t> cu_seqlens_q{0}, lengths;
};

/// Rows, of which one at most is of `longest`.
ragged some_rows(std::mt19937_64& engine, int rows, int row_tokens, int longest) {
  ragged made;
  for (int row = 0; row < rows; ++row) {
    const int tokens = engine() % 5 == 0 ? 0 : 1 + static_cast<int>(engine() % row_tokens);
    const int length = row == 0 ? longest : tokens + static_cast<int>(engine() % (longest / 2));
    made.cu_seqlens_q.push_back(made.cu_seqlens_q.back() + tokens);
    made.lengths.push_back(tokens == 0 ? 0 : std::min(std::max(length, tokens), longest));
  }
  return made;
}

void check_rows(int head_size, int kv_heads, int group, int rows, int row_tokens, int longest, int page_shift,
                std::mt19937_64& engine, const llama::cluster_options& options = {}) {
  const int heads = kv_heads * group, page_size = 1 << page_shift;
  const int columns = (longest + page_size - 1) / page_size + 2, spare = 3;
  CAPTURE(head_size);
  CAPTURE(kv_heads);
  CAPTURE(rows);
  CAPTURE(row_tokens);
  CAPTURE(longest);
  CAPTURE(page_shift);
  const ragged batch = some_rows(engine, rows, row_tokens, longest);
  const int live = batch.cu_seqlens_q.back(), tokens = live + spare;
  const std::int64_t token_stride = std::int64_t{kv_heads} * head_size,
                     page_stride = token_stride * page_size;
  const int pages = rows * columns + 1;
  const stream at(test_device());

  // NaN everywhere, then numbers where a row's tokens are
  std::normal_distribution<float> draw;
  const bf16 poison{0x7fc0};
  std::vector<bf16> keys(pages * page_stride, poison), values = keys,
                                                       query(std::int64_t{tokens} * heads * head_size);
  for (bf16& each : query) each = from_float<bf16>(draw(engine));
  std::vector<std::int32_t> free(pages - 1), table(std::int64_t{rows} * columns, 1 << 30);
  for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<std::int32_t>(i) + 1;
  std::ranges::shuffle(free, engine);
  const auto place = [&](int row, std::int64_t position) {
    return table[row * columns + (position >> page_shift)] * page_stride +
           (position & (page_size - 1)) * token_stride;
  };
  for (int row = 0; row < rows; ++row)
    for (int position = 0; position < batch.lengths[row]; ++position) {
      if (position % page_size == 0) {
        table[row * columns + position / page_size] = free.back();
        free.pop_back();
      }
      for (int i = 0; i < token_stride; ++i) {
        keys[place(row, position) + i] = from_float<bf16>(draw(engine));
        values[place(row, position) + i] = from_float<bf16>(draw(engine));
      }
    }

  const device_vector<bf16> device_keys(at.ref(), keys), device_values(at.ref(), values),
      device_query(at.ref(), query), output(at.ref(), query.size(), poison);
  const device_vector<std::int32_t> device_table(at.ref(), table), cu(at.ref(), batch.cu_seqlens_q),
      lengths(at.ref(), batch.lengths);
  const device_vector<std::int32_t> workspace(
      at.ref(), static_cast<std::int64_t>(llama::cluster_attention_workspace_bytes(test_device()) / 4), 0);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  const paged_attention_params params{.type = element_type::bf16,
                                      .query = device_query.data(),
                                      .output = output.data(),
                                      .cache = {.keys = device_keys.data(),
                                                .values = device_values.data(),
                                                .page_stride = page_stride,
                                                .token_stride = token_stride,
                                                .head_stride = head_size,
                                                .pages = pages},
                                      .page_table = device_table.data(),
                                      .page_table_stride = columns,
                                      .page_columns = columns,
                                      .tokens = tokens,
                                      .rows = rows,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .head_size = head_size,
                                      .page_shift = page_shift,
                                      .scale = scale,
                                      .cu_seqlens_q = cu.data(),
                                      .cache_seqlens = lengths.data(),
                                      .workspace = workspace.data(),
                                      .workspace_bytes = static_cast<std::size_t>(workspace.size()) * 4};
  REQUIRE(llama::has_cluster_attention(test_device(), params, row_tokens));
  // twice: the first leaves the workspace as it found it
  for (int i = 0; i < 2; ++i) llama::cluster_attention(at.ref(), params, row_tokens, options);
  const std::vector<bf16> got = output.get();

  double difference = 0, size = 0;
  for (int row = 0; row < rows; ++row)
    for (int token = batch.cu_seqlens_q[row]; token < batch.cu_seqlens_q[row + 1]; ++token)
      for (int head = 0; head < heads; ++head) {
        const std::int64_t first = (std::int64_t{token} * heads + head) * head_size;
        const int kv = head / group * head_size;
        reference::attention_case plain;
        for (int d = 0; d < head_size; ++d) plain.query.push_back(to_float(query[first + d]));
        plain.positions = batch.lengths[row] - (batch.cu_seqlens_q[row + 1] - token) + 1;
        plain.key = [&](std::int64_t position, int d) {
          return to_float(keys[place(row, position) + kv + d]);
        };
        plain.value = [&](std::int64_t position, int d) {
          return to_float(values[place(row, position) + kv + d]);
        };
        plain.scale = scale;
        const auto want = reference::attention(plain);
        for (int d = 0; d < head_size; ++d) {
          difference += std::pow(to_float(got[first + d]) - want.output[d], 2);
          size += std::pow(want.output[d], 2);
        }
      }
  CHECK((live == 0 || std::sqrt(difference / size) < 1e-2));
  CHECK(std::all_of(got.begin() + std::int64_t{live} * heads * head_size, got.end(),
                    [&](bf16 value) { return value.bits == poison.bits; }));
}

}  // namespace

TEST_CASE("cluster attention: every cluster size and tile count equals plain loops") {
  if (test_device().is_host()) {
    MESSAGE("it runs on a GPU alone: skipped");
    return;
  }
  std::mt19937_64 engine(test_seed());
  for (int round = 0; round < test_rounds(24); ++round) {
    const int head_size = 64, page_shift = static_cast<int>(engine() % 7);
    // clusters of 8, 4, 2 and 1 on a GPU of 132 multiprocessors
    const int rows = std::array{1, 5, 12, 31, 40, 80}[round % 6];
    const int group = 1 + static_cast<int>(engine() % 4), kv_heads = rows > 40 ? 3
                                                                     : rows > 12
                                                                         ? 2 + static_cast<int>(engine() % 2)
                                                                         : 3;
    const int row_tokens = engine() % 3 == 0 ? 1 : 1 + static_cast<int>(engine() % (32 / group));
    const int longest = std::array{1, 63, 64, 65, 300, 700}[engine() % 6] + row_tokens;
    check_rows(head_size, kv_heads, group, rows, row_tokens, rows == 1 ? longest * 4 : longest, page_shift,
               engine);
  }
}

TEST_CASE("cluster attention: a step with a row too long for its own blocks is shared by all") {
  if (test_device().is_host()) {
    MESSAGE("it runs on a GPU alone: skipped");
    return;
  }
  std::mt19937_64 engine(test_seed());
  for (int round = 0; round < test_rounds(24); ++round) {
    const int rows = std::array{1, 5, 12, 31, 40, 80}[round % 6], group = 1 + static_cast<int>(engine() % 4),
              kv_heads = 1 + static_cast<int>(engine() % 3),
              row_tokens = 1 + static_cast<int>(engine() % (32 / group));
    // some rows or all are long, of more tiles than there are blocks or fewer, with blocks to help or without
    const int longest = std::array{130, 700, 1500}[engine() % 3] * (rows <= 5 ? 4 : 1) + row_tokens;
    check_rows(64, kv_heads, group, rows, row_tokens, longest, static_cast<int>(engine() % 7), engine,
               {.long_tiles = static_cast<int>(engine() % 3), .blocks = engine() % 2 ? 1 : 264});
  }
}
