#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/window_token_ids.hpp"
#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

struct combine_options {
  std::int64_t topk = 64, window = 16, ratio = 4;
  std::vector<std::int64_t> counts{};  // query tokens of the live rows
  std::int64_t dead = 1;               // rows after them
  std::int64_t longest = 3000;
  std::int64_t start = 0;  // query_start_loc[0]
  bool short_gather = false;
  bool drop_tokens = false;
};

void compare(std::uint64_t seed, const combine_options& options) {
  CAPTURE(seed);
  CAPTURE(options.topk);
  CAPTURE(options.window);
  CAPTURE(options.ratio);
  const stream at(test_device());
  reference::random_integers random(seed);
  reference::combine_input in;
  in.n = static_cast<std::int64_t>(options.counts.size());
  in.B = in.n + options.dead;
  in.ratio = options.ratio;
  in.window = options.window;
  in.topk = options.topk;
  in.query_start_loc.push_back(options.start);
  for (std::int64_t r = 0; r < in.B; ++r) {
    const bool live = r < in.n;
    const std::int64_t E = live ? options.counts[r] : 0;
    in.query_start_loc.push_back(live ? in.query_start_loc.back() + E : wild_index(random));
    // fresh rows, short ones, long ones
    const std::int64_t some[] = {
        0, 1, std::max<std::int64_t>(0, E - 1), E, options.window + E, random.between(0, options.longest)};
    const std::int64_t length = some[random.below(6)];
    const std::int64_t needed = std::min(length, E + options.window - 1);
    in.len.push_back(live ? length : wild_index(random));
    in.gather_len.push_back(!live ? wild_index(random)
                            : options.short_gather
                                ? random.between(0, needed)
                                : random.between(std::max<std::int64_t>(needed, 0), length));
    in.compressed_base.push_back(live ? random.below(1 << 20) : wild_index(random));
    in.swa_base.push_back(live ? random.below(1 << 20) : wild_index(random));
  }
  const std::int64_t live_tokens = in.query_start_loc[in.n] - options.start;
  in.C = std::max<std::int64_t>(
      1, options.drop_tokens ? live_tokens - 1 - random.below(3) : live_tokens + random.below(4));
  // at times lines that 16-byte accesses cannot have
  const std::int64_t columns = options.topk + (random.one_in(2) ? 0 : random.below(5)),
                     stride = std::max<std::int64_t>(1, random.one_in(2) ? (columns + 3) / 4 * 4 : columns);
  std::vector<std::int32_t> indices(static_cast<std::size_t>(in.C * stride));
  std::vector<std::int64_t> causal(static_cast<std::size_t>(in.C), 0);
  for (std::int64_t r = 0, t = 0; r < in.n; ++r)
    for (std::int64_t j = 0; j < options.counts[r] && t < in.C; ++j, ++t)
      causal[t] = std::max<std::int64_t>(0, in.len[r] - options.counts[r] + j + 1);
  for (std::int64_t t = 0; t < in.C; ++t)
    for (std::int64_t i = 0; i < stride; ++i)
      indices[t * stride + i] = static_cast<std::int32_t>(
          i >= std::min(options.topk, causal[t] / options.ratio) ? wild_index(random)
          : random.one_in(6)                                     ? -1 - random.below(2)
                                                                 : random.below(1 << 20));
  in.index = [&](std::int64_t t, std::int64_t i) { return std::int64_t{indices[t * stride + i]}; };

  const device_vector<std::int32_t> live_rows(at, {static_cast<std::int32_t>(in.n)}),
      starts(at, to_int32(in.query_start_loc)), lens(at, to_int32(in.len)),
      gather(at, to_int32(in.gather_len)), compressed(at, to_int32(in.compressed_base)),
      swa(at, to_int32(in.swa_base)), device_indices(at, indices);
  const output_table out(at, in.C, in.padded_width(), random.one_in(2) ? 0 : random.below(6));
  const output_vector<std::int32_t> length(at, in.C);
  const fault_fixture faults(at, static_cast<int>(in.B));
  combine_top_k_and_window(at, {.lengths = {.live_rows = live_rows.data(),
                                            .rows = static_cast<std::int32_t>(in.B),
                                            .seq_lens = lens.data(),
                                            .cap = 1 << 20},
                                .query_start_loc = starts.data(),
                                .tokens = static_cast<std::int32_t>(in.C),
                                .topk_indices = device_indices.data(),
                                .topk_stride = stride,
                                .topk_columns = columns,
                                .topk = static_cast<std::int32_t>(in.topk),
                                .window = static_cast<std::int32_t>(in.window),
                                .ratio = static_cast<std::int32_t>(in.ratio),
                                .gather_len = gather.data(),
                                .compressed_base = compressed.data(),
                                .swa_base = swa.data(),
                                .indices = out.sink,
                                .length = length.data(),
                                .kept = static_cast<std::int32_t>(seed % 3) - 1,
                                .faults = faults.sink()});
  const auto want = reference::combine_top_k_and_window(in);
  out.expect(want.indices);
  length.expect(want.length);
  expect_faults(op_id::combine_top_k_and_window, faults, want.faults);
}

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

TEST_CASE("sparse: combined indices equal the definitions at every top-k and query length") {
  reference::random_integers random(test_seed() + 1);
  int i = 0;
  for (const std::int64_t topk : {0, 1, 5, 63, 64, 65, 512, 2048, 2049, 2051})
    for (const std::int64_t query : {0, 1, 2, 4, -1}) {
      if (test_small() && (topk + query) % 3 != 0) continue;
      std::vector<std::int64_t> counts(1 + i % 5, query);
      for (auto& E : counts)
        if (query < 0) E = random.between(0, 7);
      const std::int64_t windows[] = {128, 1, 63, 64, 513}, ratios[] = {1, 4, 3, 128};
      compare(test_seed() + i, {.topk = topk,
                                .window = windows[i % 5],
                                .ratio = ratios[i % 4],
                                .counts = counts,
                                .dead = i % 3,
                                .longest = i % 2 ? 3000 : 20000,
                                .start = i % 3 == 0 ? 1000 : 0});
      ++i;
    }
  compare(test_seed() + 99, {.topk = 33, .window = 0, .counts = {1, 2}});
}

TEST_CASE("sparse: combined indices of more rows than a warp has threads") {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < 300; ++r) counts.push_back(r % 4 == 3 ? 0 : r % 3);
  compare(test_seed() + 200, {.topk = 40, .window = 20, .counts = counts, .dead = 20});
  compare(test_seed() + 201, {.topk = 4, .window = 4, .counts = {0, 0, test_small() ? 90 : 6000, 0, 5}});
}

TEST_CASE("sparse: a window that was not gathered and tokens past the bucket are reported") {
  for (int i = 0; i < test_rounds(20); ++i) {
    compare(test_seed() + 300 + i, {.counts = {1, 3, 0, 4}, .short_gather = true});
    compare(test_seed() + 330 + i, {.counts = {2, 0, 3, 2}, .start = 7, .drop_tokens = true});
  }
}

TEST_CASE("sparse: query starts that fall are no wild access") {
  const stream at(test_device());
  const device_vector<std::int32_t> live_rows(at, {3}), starts(at, {0, 5, 2, 6}), lens(at, {9, 9, 9}),
      gather(at, {9, 9, 9}), base(at, {0, 0, 0}), indices(at, std::vector<std::int32_t>(6 * 4, 1));
  const output_table out(at, 6, 128, 0);
  const output_vector<std::int32_t> length(at, 6);
  const fault_fixture faults(at, 3);
  combine_top_k_and_window(
      at, {.lengths = {.live_rows = live_rows.data(), .rows = 3, .seq_lens = lens.data(), .cap = 9},
           .query_start_loc = starts.data(),
           .tokens = 6,
           .topk_indices = indices.data(),
           .topk_stride = 4,
           .topk_columns = 4,
           .topk = 4,
           .window = 8,
           .gather_len = gather.data(),
           .compressed_base = base.data(),
           .swa_base = base.data(),
           .indices = out.sink,
           .length = length.data(),
           .faults = faults.sink()});
  CHECK(faults.statuses()[1] == row_status::query_count_clamped);
  for (const std::int32_t value : out.get()) CHECK((value == output_poison || (value >= -1 && value < 10)));
}

TEST_CASE("sparse: combine refuses by name what the host can see") {
  const stream at(test_device());
  const device_vector<std::int32_t> numbers(at, 512, 0);
  const device_vector<std::int64_t> wide(at, 64, 0);
  combine_top_k_and_window_params p{
      .lengths = {.live_rows = numbers.data(), .rows = 1, .seq_lens = numbers.data(), .cap = 8},
      .query_start_loc = numbers.data(),
      .tokens = 1,
      .topk_indices = numbers.data(),
      .topk_stride = 8,
      .topk_columns = 8,
      .topk = 8,
      .window = 4,
      .ratio = 4,
      .gather_len = numbers.data(),
      .compressed_base = numbers.data(),
      .swa_base = numbers.data(),
      .indices = {.data = numbers.data() + 128, .stride = 128, .columns = 128},
      .length = numbers.data() + 300};
  const auto refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(combine_top_k_and_window(at, p), doctest::Contains(why), invalid_argument);
  };
  CHECK_NOTHROW(combine_top_k_and_window(at, p));
  SUBCASE("a ratio below 1") {
    p.ratio = 0;
    refused("ratio must be at least 1, got 0");
  }
  SUBCASE("an input narrower than topk") {
    p.topk_columns = 7;
    refused("topk_indices has 7 columns, fewer than topk 8");
  }
  SUBCASE("indices of int64") {
    p.topk_indices = wide.data();
    refused("topk_indices must be int32, got int64");
  }
  SUBCASE("an output narrower than the padded width") {
    p.indices.columns = 127;
    refused("indices has 127 columns, the longest row needs 128");
  }
  SUBCASE("neither top-k nor window") {
    p.topk = p.window = 0;
    refused("topk and window are both 0");
  }
  SUBCASE("a negative window") {
    p.window = -1;
    refused("window must not be negative, got -1");
  }
  SUBCASE("no topk indices") {
    p.topk_indices = {};
    refused("topk_indices is null");
  }
}

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
