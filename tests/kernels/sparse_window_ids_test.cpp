#include "kernels/sparse/window_token_ids.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

void compare_ids(reference::batch in, int i) {
  in.C = std::max<std::int64_t>(in.C, 1);
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  reference::window_token_ids_options options;
  options.window = 1 + i * 5 % 70;
  // a map that goes on past the pool's end
  reference::batch wider = in;
  wider.pool_pages += 3;
  options.full_to_swa = reference::random_slot_map(wider, in.seed + 3);
  options.skip = -(i % 2);
  options.capacity = 1;
  std::int64_t all = 0;
  {
    auto unbounded = options;
    unbounded.capacity = 0;
    all = reference::window_token_ids(in, unbounded).offsets.value.back();
  }
  options.capacity = std::max<std::int64_t>(1, i % 4 == 0 ? all / 2 : all + 3);
  const device_map map(at, options.full_to_swa, i % 2 == 0);
  const output_vector<std::int32_t> gather_len(at, in.B), ids(at, options.capacity);
  const output_vector<std::int64_t> offsets(at, in.B + 1), wide_ids(at, options.capacity);
  window_token_ids(at, {.lengths = batch.lengths,
                        .requests = batch.requests(),
                        .source = batch.source,
                        .query = device_query(in, batch),
                        .window = static_cast<std::int32_t>(options.window),
                        .full_to_swa = map.view,
                        .skip = static_cast<std::int32_t>(options.skip),
                        .gather_len = gather_len.data(),
                        .offsets = offsets.data(),
                        .ids = i % 3 ? index_sink(ids.data()) : index_sink(wide_ids.data()),
                        .capacity = options.capacity,
                        .faults = batch.faults});
  const auto want = reference::window_token_ids(in, options);
  gather_len.expect(want.gather_len);
  offsets.expect(want.offsets);
  if (i % 3)
    ids.expect(want.ids);
  else
    wide_ids.expect(want.ids);
  expect_faults(op_id::window_token_ids, batch.reports, want.faults);
}

}  // namespace

TEST_CASE("sparse: window token ids of random ragged batches equal the definitions") {
  for (int i = 0; i < test_rounds(60); ++i)
    compare_ids(reference::random_batch(test_seed() + 400 + i, {.page_granular = i % 2 == 0,
                                                                .poison = true,
                                                                .bad_request = i % 6 == 0,
                                                                .bad_length = i % 6 == 1,
                                                                .bad_tokens = i % 6 == 2,
                                                                .bad_slot = i % 6 > 3 || i % 12 == 0}),
                i);
  compare_ids(reference::random_batch(test_seed() + 499, {.rows = 300, .page_size = 1, .max_context = 90}),
              1);
}

TEST_CASE("sparse: window token ids of tables around a tile's width and far past it") {
  int i = 0;
  for (const std::int64_t width : captured_widths())
    for (const bool page_granular : {false, true})
      compare_ids(reference::random_batch(test_seed() + 500 + width, {.rows = 3,
                                                                      .page_size = page_granular ? 64 : 1,
                                                                      .max_context = width,
                                                                      .page_granular = page_granular,
                                                                      .poison = true}),
                  i++);
}

TEST_CASE("sparse: window token ids refuse by name what the host can see") {
  const stream at(test_device());
  const device_vector<std::int32_t> numbers(at, 64, 0);
  window_token_ids_params p{
      .lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 16},
      .requests = numbers.data(),
      .source = {.table = numbers.data(), .row_stride = 16, .requests = 2, .columns = 16},
      .query = {numbers.data(), false, 1, 2},
      .window = 0,
      .full_to_swa = {numbers.data(), 16},
      .gather_len = numbers.data() + 32,
      .offsets = numbers.data() + 40,
      .ids = numbers.data() + 48,
      .capacity = 8};
  const auto refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(window_token_ids(at, p), doctest::Contains(why), invalid_argument);
  };
  refused("window must be positive, got 0");
  p.window = 4;
  p.capacity = 0;
  refused("capacity must be positive, got 0");
  p.capacity = 8;
  p.full_to_swa.size = 0;
  refused("full_to_swa has 0 entries");
}
