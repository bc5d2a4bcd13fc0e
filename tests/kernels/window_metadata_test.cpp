#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

enum class window { none, by_slots, by_pages };

struct variant {
  window kind = window::none;
  reference::tail_rule tail{};
  query_mode mode = query_mode::cumulative;
  std::int64_t skip = -1;
  bool tables = true;
  bool wide_sums = false;
};

void compare(reference::batch in, const variant& v) {
  in.C = std::max<std::int64_t>(in.C, 1);
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  reference::decode_options options;
  options.page_tables = v.tables;
  options.page_table = {v.skip, v.tail};
  options.swa_page_table = {-1 - v.skip, {v.tail.mode, v.tail.multiple, 11}};
  options.swa_slots = v.mode == query_mode::cumulative;
  options.swa_out_cache_loc_skip = v.skip;
  options.cu_seqlens_q = static_cast<reference::cu_seqlens_q_mode>(v.mode);
  options.q_stride = 3;
  const bool by_slots = v.kind == window::by_slots;
  // maps that go on past the pool's end
  reference::batch wider = in;
  wider.pool_pages += 3;
  const auto slots = reference::random_slot_map(wider, in.seed + 3);
  const auto pages = reference::random_page_map(wider.pool_pages, in.seed + 4);
  if (by_slots) options.full_to_swa = slots;
  if (v.kind == window::by_pages) options.swa_page_map = pages;
  const device_map slot_map(at, slots, in.seed % 2 == 0), window_map(at, pages, in.seed % 2 == 1),
      page_map(at, in.page_map ? *in.page_map : pages, in.seed % 4 < 2);

  const output_vector<std::int32_t> lens(at, in.B), cu_q(at, in.B + 1);
  const output_vector<std::int64_t> cu_k(at, in.B + 1), loc(at, in.C);
  const output_vector<std::int32_t> narrow_cu_k(at, in.B + 1);
  const output_table table(at, in.B, in.page_columns, in.seed % 4),
      swa(at, in.B, in.page_columns, in.seed % 3);
  decode_metadata_params p{
      .lengths = batch.lengths,
      .requests = batch.requests(),
      .source = batch.source,
      .skip = static_cast<std::int32_t>(v.skip),
      .cache_seqlens = lens.data(),
      .cu_seqlens_k = v.wide_sums ? index_sink(cu_k.data()) : index_sink(narrow_cu_k.data()),
      .tail = device_tail(v.tail),
      .cu_seqlens_q_mode = v.mode,
      .query = device_query(in, batch),
      .q_stride = 3,
      .cu_seqlens_q = cu_q.data(),
      .faults = batch.faults};
  if (in.page_map) p.page_map = page_map.view;
  if (v.tables) {
    p.page_table = table.data();
    p.page_table_stride = table.sink.stride;
    p.page_columns = in.page_columns;
  }
  if (v.kind != window::none && v.tables)
    p.window = {.full_to_swa = by_slots ? slot_map.view : index_map{},
                .page_map = by_slots ? index_map{} : window_map.view,
                .page_table = swa.data(),
                .page_table_stride = swa.sink.stride,
                .skip = static_cast<std::int32_t>(options.swa_page_table.skip),
                .tail_value = 11,
                .out_cache_loc = options.swa_slots ? index_sink(loc.data()) : index_sink(),
                .out_cache_loc_skip = static_cast<std::int32_t>(v.skip)};
  // verify and its sliding-window tables, lengths, sums and slots: one node
  const auto enqueue = [&p](stream_ref s) { multi_head_metadata(s, p); };
  CHECK(capture(at, enqueue).node_count() == 1);
  enqueue(at);

  const auto want = reference::multi_head_metadata(in, options);
  lens.expect(want.cache_seqlens);
  if (v.wide_sums)
    cu_k.expect(want.cu_seqlens_k);
  else
    narrow_cu_k.expect(want.cu_seqlens_k);
  cu_q.expect(want.cu_seqlens_q);
  table.expect(want.page_table);
  swa.expect(want.swa_page_table);
  if (options.swa_slots) loc.expect(want.swa_out_cache_loc);
  expect_faults(op_id::decode_metadata, batch.reports, want.faults);
}

}  // namespace

TEST_CASE("decode metadata with a sliding window, by slots and by pages, equals the definitions") {
  for (int i = 0; i < test_rounds(40); ++i)
    compare(reference::random_batch(test_seed() + i, {.page_granular = i % 2 == 0,
                                                      .page_map = i % 3 == 0,
                                                      .poison = true,
                                                      .bad_request = i % 5 == 0,
                                                      .bad_length = i % 11 == 0,
                                                      .bad_slot = i % 7 < 2,
                                                      .drop_tokens = i % 5 == 1}),
            {.kind = i % 4 < 2 ? window::by_slots : window::by_pages,
             .skip = i % 2 - 1,
             .wide_sums = i % 2 == 0});
}

TEST_CASE("decode metadata with a sliding window reports what lies outside pool and maps") {
  // short rows, so that many of the new tokens' own slots are among the wrong ones
  for (int i = 0; i < test_rounds(40); ++i)
    compare(reference::random_batch(test_seed() + 500 + i, {.rows = 12,
                                                            .live_rows = 12,
                                                            .max_tokens = 6,
                                                            .page_size = 4,
                                                            .max_context = 11,
                                                            .page_granular = i % 8 > 5,
                                                            .poison = true,
                                                            .bad_slot = true}),
            {.kind = i % 4 != 3 ? window::by_slots : window::by_pages, .skip = i % 2 - 1});
}

TEST_CASE("decode metadata through a page map, with each tail, equals the definitions") {
  for (int i = 0; i < test_rounds(48); ++i)
    compare(reference::random_batch(test_seed() + 100 + i, {.page_granular = i % 2 == 0,
                                                            .page_map = i % 4 < 2,
                                                            .poison = true,
                                                            .bad_request = i % 7 == 0,
                                                            .bad_slot = i % 5 < 2}),
            {.kind = i % 5 == 0 ? window::by_pages : window::none, .tail = some_tail(i), .skip = -(i % 2)});
}

TEST_CASE("cu_seqlens_q is left alone, sums E, or counts rows times a stride") {
  for (int i = 0; i < test_rounds(30); ++i)
    compare(reference::random_batch(test_seed() + 200 + i, {.poison = true, .bad_tokens = i % 2 == 0}),
            {.mode = static_cast<query_mode>(i % 3)});
}

TEST_CASE("page tables can be skipped") {
  for (int i = 0; i < test_rounds(10); ++i)
    compare(reference::random_batch(test_seed() + 300 + i, {.poison = true}), {.tables = false});
}

TEST_CASE("a row shorter than its query tokens stores nothing before its first token") {
  // negative-length and accept-zero: E of rows that are fresh, and of 0 accepted drafts
  for (int i = 0; i < test_rounds(10); ++i)
    compare(reference::random_batch(test_seed() + 400 + i,
                                    {.max_tokens = 8, .page_size = 4, .max_context = 9, .poison = true}),
            {.kind = window::by_slots, .skip = -(i % 2)});
}

TEST_CASE("a sliding window refuses by name what the host can see") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 64, 0);
  decode_metadata_params p{
      .lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 16},
      .requests = numbers.data(),
      .source = {.table = numbers.data(), .row_stride = 16, .requests = 2, .columns = 16},
      .cache_seqlens = numbers.data() + 8,
      .page_columns = 16};
  p.window.page_table = numbers.data() + 16;
  p.window.page_table_stride = 16;
  SUBCASE("no map") {
    CHECK_THROWS_WITH_AS(decode_metadata(at, p), doctest::Contains("full_to_swa or page_map"),
                         invalid_argument);
  }
  SUBCASE("both maps") {
    p.window.full_to_swa = p.window.page_map = {numbers.data(), 4};
    CHECK_THROWS_WITH_AS(decode_metadata(at, p), doctest::Contains("not both"), invalid_argument);
  }
  SUBCASE("a stride below the width") {
    p.window.full_to_swa = {numbers.data(), 4};
    p.window.page_table_stride = 12;
    CHECK_THROWS_WITH_AS(decode_metadata(at, p), doctest::Contains("window.page_table_stride 12"),
                         invalid_argument);
  }
  SUBCASE("no cu_seqlens_q to write") {
    p.window = {};
    p.cu_seqlens_q_mode = query_mode::rows_times_stride;
    CHECK_THROWS_WITH_AS(decode_metadata(at, p), doctest::Contains("cu_seqlens_q is null"), invalid_argument);
  }
}

TEST_CASE("decode metadata with a sliding window at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths())
    compare(reference::random_batch(
                test_seed() + width,
                {.rows = 3, .page_size = 1, .max_context = width, .length_limit = 5000, .poison = true}),
            {.kind = width % 2 ? window::by_slots : window::by_pages,
             .tail = some_tail(static_cast<int>(width) % 2)});
}
