// Page tables and lengths that hold more than is live: docs/faults.md.
#include <doctest/doctest.h>

#include <limits>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "tests/device_vector.hpp"
#include "tests/faults/adopted_table.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

constexpr std::int32_t wild = adopted_table::wild;

/// What steps of every kind emit over an adopted table, those of a draft that is the target itself included.
std::vector<std::int32_t> texts(const tiny_with_draft& t, int columns, int extra, bool clean) {
  constexpr int page_size = 8, page_shift = 3, drafts = 3;
  const stream at(test_device());
  adopted_table adopted(at.ref(), columns, extra, clean);
  step_limits limits = t.limits(3, drafts);
  limits.max_context = std::int64_t{columns} * page_size;
  limits.kv_pages = 3 * columns + 1;
  limits.hidden_size = t.weights.config.hidden_size;
  std::vector<step_definition> steps = t.model->steps(true);
  for (step_definition& step : t.draft.steps())
    if (!step.sampled) steps.push_back(std::move(step));
  step_executor executor(test_device(), limits, t.model->layout(), std::move(steps),
                         few_buckets(limits, {.stream = at.ref(),
                                              .requests = adopted.view(page_shift),
                                              .poison = !clean,
                                              .draft = t.draft.shape(),
                                              .draft_lengths = {drafts}}));
  executor.capture();
  const std::vector<std::int32_t> prompt{5, 6, 7}, guesses{1, 2, 3};
  std::vector<std::int32_t> all;
  for (int i = 0; i < 10; ++i) {
    // pages for the rows' next tokens and no more
    const int most = std::ranges::max(adopted.seq_lens.get()) + drafts + 1;
    if (most > limits.max_context) break;
    adopted.give(most, page_size);
    std::vector<step_row> rows;
    step_round round{.kind = i == 0       ? step_kind::extend
                             : i % 3 == 1 ? step_kind::decode
                                          : step_kind::target_verify,
                     .draft_length = i > 0 && i % 3 == 0 ? drafts : 0,
                     .extend_draft = true};
    for (int r = 0; r < 3; ++r)
      rows.push_back(round.kind == step_kind::extend   ? step_row{r, r + 1, std::span(prompt).first(r + 1)}
                     : round.kind == step_kind::decode ? step_row{r, 1, {}}
                     : /* a row sits the round out */ r == i % 4 ? step_row{r, 0, {}}
                     : round.draft_length > 0                    ? step_row{r, drafts + 1, {}}
                                                                 : step_row{r, drafts + 1, guesses});
    round.rows = rows;
    const step_ticket ticket = *executor.replay(round);
    for (const row_result& row : executor.wait(ticket)) {
      CHECK(row.status == 0);
      all.push_back(row.token);
      all.push_back(row.length);  // with the drafts that were kept: a wrong one shows
    }
  }
  executor.stream().synchronize();  // the draft's last step too
  CHECK_FALSE(executor.fault());
  return all;
}

}  // namespace

TEST_CASE("tail-wild: what lies in a table beyond the live pages changes nothing, in any step kind") {
  const tiny_with_draft t(0.0f);
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

TEST_CASE("dtype: an executor refuses narrow tables, short strides and memory that its device cannot reach") {
  const tiny t;
  constexpr int columns = 32, page_size = 8, pages = 9;
  const stream at(test_device());
  const adopted_table table(at.ref(), columns, 0, true);
  const kv_layout layout = t.model->layout();
  const buffer pool(device_memory(test_device()), kv_cache_bytes(layout, page_size, pages));
  const buffer pinned(pinned_memory(test_device()), 64);
  std::vector<std::int32_t> in_process(adopted_table::requests * columns, 1);
  const auto make = [&](auto change) {
    executor_options options{.stream = at.ref(),
                             .kv_cache = make_kv_cache(layout, page_size, pages, {pool.data(), pool.bytes()}),
                             .requests = table.view(3)};
    change(options);
    step_limits limits = t.limits(3, 0);
    limits.max_context = columns * page_size;
    step_executor(test_device(), limits, layout, t.model->steps(), options);
  };
  const auto refused = [&](const char* why, auto change) {
    const activity before = activity_now();
    CHECK_THROWS_WITH_AS(make(change), doctest::Contains(why), invalid_argument);
    const activity did = activity_now() - before;
    CHECK(did.launches == 0);
    CHECK(did.allocations == 0);
  };
  CHECK_NOTHROW(make([](executor_options&) {}));
  CHECK_NOTHROW(make([&](executor_options& o) { o.requests->seq_lens = pinned.as<std::int32_t>(); }));
  refused("rows of 32 columns 31 apart", [](executor_options& o) { o.requests->source.row_stride = 31; });
  refused("names 248 tokens a request, max_context is 256",
          [](executor_options& o) { o.requests->source.columns = 31; });
  // the process's own memory, which is the host's memory and no GPU's
  const auto change_each = [&](auto use) {
    std::int32_t* const words = in_process.data();
    use("options.requests.source.table", [=](executor_options& o) { o.requests->source.table = words; });
    use("options.requests.seq_lens", [=](executor_options& o) { o.requests->seq_lens = words; });
    use("options.requests.last_token", [=](executor_options& o) { o.requests->last_token = words; });
    use("options.requests.sampling",
        [=](executor_options& o) { o.requests->sampling = reinterpret_cast<sampling_settings*>(words); });
    use("options.kv_cache.keys", [=](executor_options& o) { o.kv_cache->layers.back().keys = words; });
    use("options.kv_cache.values", [=](executor_options& o) { o.kv_cache->layers.front().values = words; });
  };
  if (test_device().is_host()) {
    CHECK(foreign_memory(test_device(), in_process.data()).empty());
    return;
  }
  change_each([&](const char* name, auto change) {
    refused(name, change);
    refused("host memory that CUDA did not allocate", change);
  });
  // another GPU's, where there is one
  if (device::cuda_count() > 1) {
    const device other = device::cuda(test_device().ordinal() == 0 ? 1 : 0);
    const buffer there(device_memory(other), in_process.size() * sizeof(std::int32_t));
    const std::string whose = message("memory of cuda:", other.ordinal());
    refused(whose.c_str(), [&](executor_options& o) {
      o.requests->source.table = reinterpret_cast<std::int32_t*>(there.data());
    });
    refused(whose.c_str(), [&](executor_options& o) { o.kv_cache->layers.back().keys = there.data(); });
  }
  // and a device that is not the executor's
  const stream on_host(device::host());
  refused("the adopted stream is on host", [&](executor_options& o) { o.stream = on_host.ref(); });
  refused("the adopted memory is on host",
          [&](executor_options& o) { o.memory = &device_memory(device::host()); });
  CHECK_THROWS_WITH_AS(
      step_executor(device::host(), t.limits(3), layout, t.model->steps(), {.stream = at.ref()}),
      doctest::Contains("the adopted stream is on"), invalid_argument);
}
