#include "kernels/metadata/draft_steps_metadata.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// A line of an output that has one vector a step.
void expect_line(const std::vector<std::int64_t>& all, std::int64_t line,
                 const reference::vector_output& want) {
  const auto size = static_cast<std::int64_t>(want.value.size());
  const auto got = line_of(all, line, size);
  CHECK_MESSAGE(check_live(got, want).empty(), check_live(got, want));
}

template <class T>
std::vector<std::int64_t> widened(const device_vector<T>& values) {
  const auto got = values.get();
  return {got.begin(), got.end()};
}

void compare(reference::batch in, std::int64_t steps, std::int64_t skip, bool window) {
  in.C = std::max<std::int64_t>(in.C, 1);
  CAPTURE(reference::describe(in));
  CAPTURE(steps);
  const stream at(test_device());
  const device_batch batch(at, in);
  reference::draft_steps_options options{.steps = steps, .decode = {}, .out_cache_loc_skip = skip};
  options.decode.page_table.skip = skip;
  const auto slots = reference::random_slot_map(in, in.seed + 3);
  if (window) options.decode.full_to_swa = slots;
  const device_map slot_map(at, slots, true);
  const output_vector<std::int32_t> lens(at, steps * in.B), cu(at, steps * (in.B + 1)),
      position(at, steps * in.C);
  const output_vector<std::int64_t> loc(at, steps * in.C);
  const output_table table(at, in.B, in.page_columns, 1), swa(at, in.B, in.page_columns, 2);
  draft_steps_metadata_params p{.decode = {.lengths = batch.lengths,
                                           .requests = batch.requests(),
                                           .source = batch.source,
                                           .skip = static_cast<std::int32_t>(skip),
                                           .page_table = table.data(),
                                           .page_table_stride = table.sink.stride,
                                           .page_columns = in.page_columns,
                                           .faults = batch.faults},
                                .steps = static_cast<std::int32_t>(steps),
                                .query = device_query(in, batch),
                                .slot_skip = static_cast<std::int32_t>(skip),
                                .cache_seqlens = lens.data(),
                                .cu_seqlens_k = cu.data(),
                                .out_cache_loc = loc.data(),
                                .position = position.data()};
  if (window)
    p.decode.window = {
        .full_to_swa = slot_map.view, .page_table = swa.data(), .page_table_stride = swa.sink.stride};
  draft_steps_metadata(at, p);
  const auto want = reference::draft_steps_metadata(in, options);
  for (std::int64_t k = 0; k < steps; ++k) {
    CAPTURE(k);
    expect_line(widened(lens), k, want.cache_seqlens[k]);
    expect_line(widened(cu), k, want.cu_seqlens_k[k]);
    expect_line(widened(loc), k, want.out_cache_loc[k]);
    expect_line(widened(position), k, want.position[k]);
  }
  for (const auto& all : {widened(lens), widened(cu), widened(loc), widened(position)})
    for (std::size_t i = all.size() - 4; i < all.size(); ++i) CHECK(all[i] == output_poison);
  table.expect(want.page_table);
  swa.expect(want.swa_page_table);
}

}  // namespace

TEST_CASE("one launch makes the metadata of all draft steps, dead rows of 0 length in each") {
  for (int i = 0; i < test_rounds(40); ++i) {
    const std::int64_t steps = 1 + i % 6;
    compare(reference::random_batch(
                test_seed() + i,
                {.max_tokens = 1, .draft_steps = steps, .page_granular = i % 2 == 0, .poison = true}),
            steps, -(i % 2), i % 3 == 0);
  }
}

TEST_CASE("pad-zero: 3 of 4 rows live, and more rows than a block has threads") {
  compare(reference::random_batch(
              test_seed(), {.rows = 4, .live_rows = 3, .max_tokens = 1, .draft_steps = 3, .poison = true}),
          3, -1, false);
  compare(reference::random_batch(test_seed(), {.rows = 300,
                                                .max_tokens = 1,
                                                .page_size = 1,
                                                .max_context = 40,
                                                .draft_steps = 4,
                                                .poison = true}),
          4, 0, false);
}

TEST_CASE("all draft steps are one node") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 256, 0);
  draft_steps_metadata_params p{
      .decode = {.lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 16},
                 .requests = numbers.data(),
                 .source = {.table = numbers.data(), .row_stride = 16, .requests = 2, .columns = 16}},
      .steps = 4,
      .query = {numbers.data(), false, 1, 2},
      .cache_seqlens = numbers.data() + 64};
  CHECK(capture(at, [&](stream_ref s) { draft_steps_metadata(s, p); }).node_count() == 1);
  p.steps = 0;
  CHECK_THROWS_WITH_AS(draft_steps_metadata(at, p), doctest::Contains("steps must be positive"),
                       invalid_argument);
}

TEST_CASE("draft steps at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths())
    compare(reference::random_batch(test_seed() + width, {.rows = 3,
                                                          .max_tokens = 1,
                                                          .page_size = 1,
                                                          .max_context = width,
                                                          .length_limit = 5000,
                                                          .draft_steps = 2,
                                                          .poison = true}),
            2, -1, width > 64);
}
