#include "kernels/metadata/decode_metadata.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr std::int32_t poison = -77;

void compare(const reference::batch& in, std::int64_t extra_stride = 0) {
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  const std::int64_t stride = in.page_columns + extra_stride;
  device_vector<std::int32_t> lens(at, in.B + 4, poison), cu(at, in.B + 5, poison),
      table(at, in.B * stride + 4, poison);
  decode_metadata(at, {.lengths = batch.lengths,
                       .requests = batch.requests(),
                       .source = batch.source,
                       .skip = -1,
                       .cache_seqlens = lens.data(),
                       .cu_seqlens_k = cu.data(),
                       .page_table = table.data(),
                       .page_table_stride = stride,
                       .page_columns = in.page_columns,
                       .faults = batch.faults});
  const auto want = reference::decode_metadata(in);
  const auto got_lens = lens.get(), got_cu = cu.get(), got_table = table.get();
  CHECK_MESSAGE(check_live(got_lens, want.cache_seqlens).empty(), check_live(got_lens, want.cache_seqlens));
  CHECK_MESSAGE(check_live(got_cu, want.cu_seqlens_k).empty(), check_live(got_cu, want.cu_seqlens_k));
  CHECK_MESSAGE(check_live(got_table, stride, want.page_table).empty(),
                check_live(got_table, stride, want.page_table));
  // exactly the live columns are written
  CHECK_MESSAGE(check_untouched(got_lens, poison, want.cache_seqlens).empty(), "cache_seqlens past its end");
  CHECK_MESSAGE(check_untouched(got_cu, poison, want.cu_seqlens_k).empty(), "cu_seqlens_k past its end");
  CHECK_MESSAGE(check_untouched(got_table, stride, poison, want.page_table).empty(),
                check_untouched(got_table, stride, poison, want.page_table));
  expect_faults(op_id::decode_metadata, batch.reports, want.faults);
}

}  // namespace

TEST_CASE("decode metadata of random ragged batches equals the definitions and touches live columns alone") {
  for (int i = 0; i < test_rounds(60); ++i)
    compare(reference::random_batch(test_seed() + i, {.page_granular = i % 2 == 0, .poison = true}), i % 4);
}

TEST_CASE("decode metadata clamps and reports what cannot be") {
  for (int i = 0; i < test_rounds(20); ++i) {
    compare(reference::random_batch(test_seed() + 500 + 2 * i, {.poison = true, .bad_request = true}));
    compare(reference::random_batch(test_seed() + 501 + 2 * i, {.poison = true, .bad_length = true}));
    compare(reference::random_batch(test_seed() + 540 + i, {.page_granular = i % 2 == 0,
                                                            .poison = true,
                                                            .bad_request = true,
                                                            .bad_length = true,
                                                            .bad_slot = true}));
  }
}

TEST_CASE("decode metadata puts skip where a table's entry is negative or past the pool") {
  for (int i = 0; i < test_rounds(20); ++i)
    compare(reference::random_batch(test_seed() + 600 + i, {.page_granular = i % 2 == 0, .bad_slot = true}));
  // columns by 16 bytes, past one round of loads
  for (const std::int64_t width : {3, 64, 1023, 20000})
    compare(reference::random_batch(test_seed() + 650 + width,
                                    {.rows = 9, .page_size = 1, .max_context = width, .bad_slot = true}));
}

TEST_CASE("widths around the tile and past it, page size 1") {
  for (const std::int64_t width : {1, 63, 64, 65, 1000, 4095, 4096, 4097, 20000, 131072})
    compare(reference::random_batch(test_seed() + width, {.rows = 5, .page_size = 1, .max_context = width}),
            3);
}

TEST_CASE("more rows than one block has threads, some longer than a tile") {
  compare(reference::random_batch(test_seed() + 9,
                                  {.rows = 600, .page_size = 1, .max_context = 9000, .length_limit = 200}));
}

TEST_CASE("one capture serves every live count and length") {
  const stream at(test_device());
  const std::int64_t rows = 8, width = 10000;
  device_vector<std::int32_t> live(at, 1, 0), seq_lens(at, rows, 0), requests(at, {7, 6, 5, 4, 3, 2, 1, 0}),
      lens(at, rows, poison), cu(at, rows + 1, poison), table(at, rows * width, poison);
  std::vector<std::int32_t> slots(rows * width);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i * 7 % 100003);
  device_vector<std::int32_t> source(at, slots);
  const graph_exec exec =
      capture(at, [&](stream_ref s) {
        decode_metadata(
            s,
            {.lengths = {.live_rows = live.data(), .rows = rows, .seq_lens = seq_lens.data(), .cap = width},
             .requests = requests.data(),
             .source = {.table = source.data(), .row_stride = width, .requests = rows, .columns = width},
             .cache_seqlens = lens.data(),
             .cu_seqlens_k = cu.data(),
             .page_table = table.data(),
             .page_table_stride = width,
             .page_columns = width});
      }).instantiate();
  reference::random_integers random(test_seed());
  for (int n = rows; n >= 0; --n) {
    std::vector<std::int32_t> wanted(rows);
    for (auto& length : wanted) length = static_cast<std::int32_t>(random.between(0, width));
    live.set({n});
    seq_lens.set(wanted);
    table.set(std::vector<std::int32_t>(rows * width, poison));
    exec.launch(at);
    const auto got = table.get();
    const auto got_lens = lens.get();
    for (int r = 0; r < rows; ++r) {
      const int length = r < n ? wanted[r] : 0;
      REQUIRE(got_lens[r] == length);
      for (std::int64_t x = 0; x < width; ++x)
        REQUIRE(got[r * width + x] == (x < length ? slots[(7 - r) * width + x] : poison));
    }
  }
}

TEST_CASE("decode metadata refuses by name what the host can see") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 64, 0);
  decode_metadata_params params{
      .lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 16},
      .requests = numbers.data(),
      .source = {.table = numbers.data(), .row_stride = 16, .requests = 2, .columns = 16},
      .cache_seqlens = numbers.data(),
      .page_table = numbers.data(),
      .page_table_stride = 16,
      .page_columns = 16};
  decode_metadata(at, params);
  SUBCASE("a table that is too narrow") {
    params.page_columns = 15;
    CHECK_THROWS_WITH_AS(decode_metadata(at, params), doctest::Contains("page_table has 15 columns"),
                         invalid_argument);
  }
  SUBCASE("a stride below the width") {
    params.page_table_stride = 12;
    CHECK_THROWS_WITH_AS(decode_metadata(at, params), doctest::Contains("page_table_stride 12"),
                         invalid_argument);
  }
  SUBCASE("prefix sums that overflow") {
    params.lengths.cap = INT32_MAX;
    params.source.columns = params.source.row_stride = INT32_MAX;
    params.page_columns = params.page_table_stride = INT32_MAX;
    params.cu_seqlens_k = numbers.data();
    CHECK_THROWS_WITH_AS(decode_metadata(at, params), doctest::Contains("overflow"), invalid_argument);
  }
  at.synchronize();
}
