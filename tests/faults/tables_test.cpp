// Page tables and lengths that hold more than is live: docs/faults.md.
#include <doctest/doctest.h>

#include <limits>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

namespace {

constexpr std::int32_t wild = 0x7f7f7f7f;

/// An embedder's request table of one page a token or more, wild beyond each request's pages.
struct adopted_table {
  static constexpr int requests = 3;
  int columns, stride;
  device_vector<std::int32_t> table, seq_lens, last_token;

  adopted_table(stream_ref at, int columns, int extra, bool clean)
      : columns(columns),
        stride(columns + extra),
        table(at, std::size_t(requests) * stride, clean ? 0 : wild),
        seq_lens(at, requests, 0),
        last_token(at, requests, 0) {}

  /// Pages for `length` tokens of each request, none shared; the rest of each line as it was.
  void give(int length, int page_size) {
    std::vector<std::int32_t> entries = table.get();
    const int pages = (length + page_size - 1) / page_size;
    for (int r = 0; r < requests; ++r)
      for (int i = 0; i < pages; ++i) entries[r * stride + i] = 1 + r * columns + i;
    table.set(entries);
  }
  adopted_requests view(int page_shift) const {
    return {.source = {.table = table.data(),
                       .row_stride = stride,
                       .requests = requests,
                       .columns = columns,
                       .page_shift = page_shift,
                       .page_granular = true,
                       .pool_pages = 0},
            .seq_lens = seq_lens.data(),
            .last_token = last_token.data()};
  }
};

/// What steps of every kind emit over an adopted table.
std::vector<std::int32_t> texts(const tiny& t, int columns, int extra, bool clean) {
  constexpr int page_size = 8, page_shift = 3, drafts = 3;
  const stream at(test_device());
  adopted_table adopted(at.ref(), columns, extra, clean);
  step_limits limits = t.limits(3, drafts);
  limits.max_context = std::int64_t{columns} * page_size;
  limits.kv_pages = 3 * columns + 1;
  step_executor executor(
      test_device(), limits, t.model->layout(), t.model->steps(true),
      few_buckets(limits, {.stream = at.ref(), .requests = adopted.view(page_shift), .poison = !clean}));
  executor.capture();
  const std::vector<std::int32_t> prompt{5, 6, 7}, guesses{1, 2, 3};
  std::vector<std::int32_t> all;
  for (int i = 0; i < 8; ++i) {
    // pages for the rows' next tokens and no more
    const int most = adopted.seq_lens.get()[0] + 6;
    if (most > limits.max_context) break;
    adopted.give(most, page_size);
    std::vector<step_row> rows;
    const step_kind kind = i == 0       ? step_kind::extend
                           : i % 2 == 1 ? step_kind::decode
                                        : step_kind::target_verify;
    for (int r = 0; r < 3; ++r)
      rows.push_back(kind == step_kind::extend   ? step_row{r, r + 1, std::span(prompt).first(r + 1)}
                     : kind == step_kind::decode ? step_row{r, 1, {}}
                     : /* a row sits the round out */ r == 1 ? step_row{r, 0, {}}
                                                             : step_row{r, 4, guesses});
    const step_ticket ticket = *executor.replay(kind, rows);
    for (const row_result& row : executor.wait(ticket)) {
      CHECK(row.status == 0);
      all.push_back(row.token);
      all.push_back(row.length);
    }
  }
  CHECK_FALSE(executor.fault());
  return all;
}

}  // namespace

TEST_CASE("tail-wild: what lies in a table beyond the live pages changes nothing, in any step kind") {
  const tiny t;
  for (const int columns : {7, 63, 64, 65})
    for (const int extra : {0, 1, 5}) {
      if (test_small() && extra != columns % 2 * 5) continue;
      CHECK(texts(t, columns, extra, true) == texts(t, columns, extra, false));
    }
}

TEST_CASE("negative-length: a padded or fresh row whose length is below zero counts as empty") {
  const stream at(test_device());
  constexpr int rows = 4, columns = 8;
  const device_vector<std::int32_t> live(at.ref(), 1, rows), requests(at.ref(), {0, 1, 2, 3});
  const device_vector<std::int32_t> counts(at.ref(), {1, 2, 8, 3});
  const device_vector<std::int64_t> before(at.ref(),
                                           {-1, -2, 0, std::numeric_limits<std::int64_t>::min() / 2});
  const device_vector<std::int32_t> table(at.ref(), std::size_t(rows) * columns, 1);
  const device_vector<std::int32_t> lengths(at.ref(), rows, wild), cu(at.ref(), rows + 1, wild);
  const device_vector<std::int32_t> pages(at.ref(), std::size_t(rows) * columns, wild);
  decode_metadata(at.ref(), {.lengths = {.live_rows = live.data(),
                                         .rows = rows,
                                         .seq_lens = before.data(),
                                         .delta = -1,
                                         .delta_by_row = counts.data(),
                                         .cap = columns},
                             .requests = requests.data(),
                             .source = {.table = table.data(),
                                        .row_stride = columns,
                                        .requests = rows,
                                        .columns = columns,
                                        .page_shift = 0,
                                        .page_granular = false,
                                        .pool_pages = 0},
                             .skip = -1,
                             .cache_seqlens = lengths.data(),
                             .cu_seqlens_k = cu.data(),
                             .page_table = pages.data(),
                             .page_table_stride = columns,
                             .page_columns = columns,
                             .faults = {}});
  CHECK(lengths.get() == std::vector<std::int32_t>{0, 0, 7, 0});
  CHECK(cu.get() == std::vector<std::int32_t>{0, 0, 0, 7, 7});
  std::vector<std::int32_t> want(std::size_t(rows) * columns, wild);
  std::fill_n(want.begin() + 2 * columns, 7, 1);
  CHECK(pages.get() == want);
}

TEST_CASE(
    "dtype: a table that is too narrow, strides and pointers that cannot be: refused, nothing launched") {
  const stream at(test_device());
  constexpr int columns = 8;
  const device_vector<std::int32_t> word(at.ref(), 64, 0);
  const decode_metadata_params good{.lengths = {.live_rows = word.data(),
                                                .rows = 2,
                                                .seq_lens = word.data(),
                                                .delta = 0,
                                                .delta_by_row = nullptr,
                                                .cap = columns},
                                    .requests = word.data(),
                                    .source = {.table = word.data(),
                                               .row_stride = columns,
                                               .requests = 2,
                                               .columns = columns,
                                               .page_shift = 0,
                                               .page_granular = false,
                                               .pool_pages = 0},
                                    .skip = -1,
                                    .cache_seqlens = word.data(),
                                    .cu_seqlens_k = {},
                                    .page_table = word.data(),
                                    .page_table_stride = columns,
                                    .page_columns = columns,
                                    .faults = {}};
  const activity before = activity_now();
  const auto refused = [&](const char* why, auto change) {
    decode_metadata_params bad = good;
    change(bad);
    CHECK_THROWS_WITH_AS(decode_metadata(at.ref(), bad), doctest::Contains(why), invalid_argument);
  };
  refused("columns, the longest row needs 8", [](auto& p) { p.page_columns = 7; });
  refused("stride", [](auto& p) { p.page_table_stride = 7; });
  refused("row_stride", [](auto& p) { p.source.row_stride = 7; });
  refused("lengths.cap", [](auto& p) { p.lengths.cap = 9; });
  refused("seq_lens is null", [](auto& p) { p.lengths.seq_lens = {}; });
  refused("requests is null", [](auto& p) { p.requests = static_cast<const std::int32_t*>(nullptr); });
  const activity did = activity_now() - before;
  CHECK(did.launches == 0);
}
