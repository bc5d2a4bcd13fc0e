#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

struct combine_options {
  std::int64_t topk = 64, window = 16, ratio = 4;
  std::vector<std::int64_t> counts{};  // query tokens of the live rows
  std::int64_t dead = 1;               // rows after them
  std::int64_t longest = 3000;
  std::int64_t more_inputs = 0;   // top-k columns past topk and what is odd about them
  std::int64_t start = 0;         // query_start_loc[0]
  std::int64_t more_columns = 0;  // of the output, past the padded width
  reference::tail_rule tail{};
  bool short_gather = false;
  bool drop_tokens = false;
  bool bad_length = false;
  bool no_index = false;  // all top-k indices are -1
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
  in.cap = 1 << 20;
  in.columns = in.padded_width() + options.more_columns;
  in.tail = options.tail;
  in.query_start_loc.push_back(options.start);
  for (std::int64_t r = 0; r < in.B; ++r) {
    const bool live = r < in.n;
    const std::int64_t E = live ? options.counts[r] : 0;
    in.query_start_loc.push_back(live ? in.query_start_loc.back() + E : wild_index(random));
    // fresh rows, short ones, long ones
    const std::int64_t some[] = {
        0, 1, std::max<std::int64_t>(0, E - 1), E, options.window + E, random.between(0, options.longest)};
    const std::int64_t wrong[] = {-1 - random.below(9), in.cap + 1 + random.below(9), -0x70000000};
    const std::int64_t given = options.bad_length && random.one_in(3) ? wrong[random.below(3)]
                                                                      : some[random.below(6)],
                       length = std::clamp<std::int64_t>(given, 0, in.cap);
    const std::int64_t needed = std::min(length, E + options.window - 1);
    in.len.push_back(live ? given : wild_index(random));
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
  const std::int64_t columns = options.topk + options.more_inputs + (random.one_in(2) ? 0 : random.below(5)),
                     stride = std::max<std::int64_t>(1, random.one_in(2) ? (columns + 3) / 4 * 4 : columns);
  std::vector<std::int32_t> indices(static_cast<std::size_t>(in.C * stride));
  std::vector<std::int64_t> causal(static_cast<std::size_t>(in.C), 0);
  for (std::int64_t r = 0, t = 0; r < in.n; ++r)
    for (std::int64_t j = 0; j < options.counts[r] && t < in.C; ++j, ++t)
      causal[t] = std::max<std::int64_t>(
          0, std::clamp<std::int64_t>(in.len[r], 0, in.cap) - options.counts[r] + j + 1);
  for (std::int64_t t = 0; t < in.C; ++t)
    for (std::int64_t i = 0; i < stride; ++i)
      indices[t * stride + i] = static_cast<std::int32_t>(
          i >= std::min(options.topk, causal[t] / options.ratio) ? wild_index(random)
          : options.no_index                                     ? -1
          : random.one_in(6)                                     ? -1 - random.below(2)
                                                                 : random.below(1 << 20));
  in.index = [&](std::int64_t t, std::int64_t i) { return std::int64_t{indices[t * stride + i]}; };

  const device_vector<std::int32_t> live_rows(at, {static_cast<std::int32_t>(in.n)}),
      starts(at, to_int32(in.query_start_loc)), gather(at, to_int32(in.gather_len)),
      compressed(at, to_int32(in.compressed_base)), swa(at, to_int32(in.swa_base)),
      device_indices(at, indices);
  device_lengths lens(at, in.B, length_form(seed));
  lens.set(random, in.len, in.n);
  const output_table out(at, in.C, in.columns, random.one_in(2) ? 0 : random.below(6), {-1, options.tail});
  const output_vector<std::int32_t> length(at, in.C);
  const fault_fixture faults(at, static_cast<int>(in.B));
  combine_top_k_and_window(at, {.lengths = lens.view(live_rows.data(), in.cap),
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

TEST_CASE("sparse: combined indices of rows, and of top-k lines, around a tile's width and far past it") {
  int i = 0;
  for (const std::int64_t width : captured_widths())
    compare(test_seed() + 350 + i++, {.topk = std::min<std::int64_t>(width, 512),
                                      .window = 128,
                                      .counts = {1, 4, 0, 2},
                                      .longest = width,
                                      .more_inputs = width});
}

TEST_CASE("sparse: a combine clamps and reports lengths") {
  for (int i = 0; i < test_rounds(20); ++i)
    compare(test_seed() + 360 + i, {.counts = {1, 3, 0, 4, 2}, .bad_length = true});
}

TEST_CASE("sparse: combined indices of tokens whose top-k indices are all -1") {
  for (const std::int64_t topk : {1, 5, 64, 512, 2051}) {
    compare(test_seed() + 380 + topk, {.topk = topk, .counts = {1, 4, 0, 2}, .no_index = true});
    compare(test_seed() + 381 + topk,
            {.topk = topk, .window = 0, .ratio = 1, .counts = {3}, .no_index = true});
  }
}

TEST_CASE("sparse: a combined output wider than its padded width, and what its tail asks for") {
  int i = 0;
  for (const std::int64_t more : {0, 1, 3, 4, 60, 128})
    for (const reference::tail_rule tail : {reference::tail_rule{},
                                            {reference::tail_mode::multiple, 100, -9},
                                            {reference::tail_mode::multiple, 256, -1},
                                            {reference::tail_mode::whole, 1, 5}}) {
      CAPTURE(more);
      compare(test_seed() + 390 + i,
              {.topk = 64 + i % 2, .counts = {1, 0, 4, 2}, .more_columns = more, .tail = tail});
      ++i;
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
