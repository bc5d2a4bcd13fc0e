#include <doctest/doctest.h>

#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

void compare_set(std::uint64_t seed, std::int64_t P, std::int64_t tokens, bool wide_loc) {
  CAPTURE(seed);
  CAPTURE(P);
  CAPTURE(tokens);
  const stream at(test_device());
  reference::random_integers random(seed);
  const auto layout = random_layout(random, P, 2 + tokens / P + random.below(3));
  const std::int64_t slots = layout.pages * P, live = random.one_in(3) ? tokens : random.between(0, tokens);
  const std::int64_t key_stride = 128 + (random.one_in(3) ? 4 : 16 * random.below(3));
  std::vector<std::int64_t> loc;
  for (std::int64_t t = 0; t < tokens; ++t)
    loc.push_back(t >= live           ? wild_index(random)
                  : random.one_in(8)  ? -1 - random.below(3)
                  : random.one_in(20) ? slots + random.below(5)
                                      : (t * 7 + static_cast<std::int64_t>(seed % 1000)) % slots);
  const auto bytes = random_bytes(random, tokens * key_stride);
  std::vector<std::uint8_t> keys;
  std::vector<std::uint32_t> scales;
  for (std::int64_t t = 0; t < tokens; ++t) {
    keys.insert(keys.end(), bytes.begin() + t * key_stride, bytes.begin() + t * key_stride + 128);
    scales.push_back(static_cast<std::uint32_t>(random.below(std::int64_t{1} << 32)));
  }
  const device_vector<std::uint8_t> device_keys(at, bytes);
  const device_vector<std::uint32_t> device_scales(at, scales);
  const device_vector<std::int32_t> live_tokens(at, {static_cast<std::int32_t>(live)}),
      narrow_loc(at, to_int32(loc));
  const device_vector<std::int64_t> long_loc(at, loc);
  const output_bytes buffer(at, layout.bytes());
  const fault_fixture faults(at, static_cast<int>(tokens));
  set_k_and_s(at, {.live_tokens = live_tokens.data(),
                   .tokens = static_cast<std::int32_t>(tokens),
                   .loc = wide_loc ? index_view(long_loc.data()) : index_view(narrow_loc.data()),
                   .keys = device_keys.data(),
                   .key_stride = key_stride,
                   .scales = reinterpret_cast<const float*>(device_scales.data()),
                   .cache = device_cache(layout, buffer.data()),
                   .faults = faults.sink()});
  const auto want = reference::set_k_and_s(layout, live, loc, keys, scales);
  buffer.expect(want.buffer);
  expect_faults(op_id::set_k_and_s, faults, want.faults);
}

struct gather_options {
  std::int64_t P = 64;
  std::int64_t rows = 0;        // 0: 1 to 9
  std::int64_t most_pages = 4;  // columns of the table ...
  std::int64_t least_pages = 1;
  std::int64_t columns = 0;  // 0: 1 to most_pages
  std::int64_t longest = 0;  // tokens of a row but the first, 0: as many as the table names
  bool bad_length = false;
  bool bad_page = false;
  bool cut = false;  // less capacity than there are tokens
  std::int64_t most_capacity = INT64_MAX;
  bool page_map = false;
  bool keys = true, scales = true;
  bool wide_sums = false;
};

void compare_get(std::uint64_t seed, const gather_options& options) {
  CAPTURE(seed);
  CAPTURE(options.P);
  const stream at(test_device());
  reference::random_integers random(seed);
  const std::int64_t rows = options.rows > 0 ? options.rows : random.between(1, 9);
  const std::int64_t columns = options.columns > 0 ? options.columns
                                                   : random.between(options.least_pages, options.most_pages),
                     stride = columns + random.below(3);
  const std::int64_t cap = columns * options.P;
  const length_form form(seed);
  const auto layout = random_layout(random, options.P, random.between(2, 12));

  reference::index_k_gather in;
  in.layout = layout;
  in.n = random.one_in(3) ? rows : random.between(0, rows);
  std::vector<std::int64_t> length;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t most = options.longest > 0 ? std::min(options.longest, cap) : cap;
    const std::int64_t edge = random.between(0, most / options.P) * options.P;
    const std::int64_t some[] = {
        0, 1, most, edge, std::max<std::int64_t>(0, edge - 1), random.between(0, most)};
    length.push_back(options.longest > 0 && r == 0 ? cap : some[random.below(6)]);
    // far off, too: by a word of which the other half is a good length
    const std::int64_t far = form.wide ? std::int64_t{1} << 32 : std::int64_t{1} << 30;
    const std::int64_t wrong[] = {-1 - random.below(9), cap + 1 + random.below(9), 0x7ffffff0,
                                  far + random.between(0, cap), random.between(0, cap) - far};
    in.len.push_back(r >= in.n                                ? wild_index(random)
                     : options.bad_length && random.one_in(3) ? wrong[random.below(5)]
                                                              : length[r]);
    if (r < in.n) length[r] = std::clamp<std::int64_t>(in.len[r], 0, cap);
  }
  // live columns name pages, all others what no one may use
  std::vector<std::int32_t> table(static_cast<std::size_t>(rows * stride));
  std::int64_t all = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    all += r < in.n ? length[r] : 0;
    for (std::int64_t x = 0; x < stride; ++x) {
      const bool live = r < in.n && x < (length[r] + options.P - 1) / options.P;
      const bool bad = options.bad_page && random.one_in(4);
      const std::int64_t page = !live                     ? wild_index(random)
                                : bad && random.one_in(2) ? -1 - random.below(4)
                                : bad                     ? layout.pages + random.below(4)
                                                          : random.below(layout.pages);
      table[r * stride + x] = static_cast<std::int32_t>(page);
    }
  }
  const auto map = reference::random_page_map(layout.pages, seed);
  in.table = {rows, columns,
              [&](std::int64_t r, std::int64_t x) -> std::int64_t { return table[r * stride + x]; }};
  if (options.page_map) in.page_map = map;
  in.capacity = std::max<std::int64_t>(1, options.cut ? all / 2 : all + random.below(4));
  in.capacity = std::min(in.capacity, options.most_capacity);

  const auto bytes = random_bytes(random, layout.bytes());
  const device_vector<std::uint8_t> buffer(at, bytes);
  const device_vector<std::int32_t> device_table(at, table), live_rows(at, {static_cast<std::int32_t>(in.n)});
  device_lengths lens(at, rows, form);
  lens.set(random, in.len, in.n);
  const device_map page_map(at, map, seed / 2 % 2 == 0);
  const output_bytes keys(at, in.capacity * 128);
  const device_vector<std::uint32_t> scales(at, in.capacity + 4, 0xdeadbeef);
  const output_vector<std::int32_t> sums(at, rows + 1);
  const output_vector<std::int64_t> wide_sums(at, rows + 1);
  const fault_fixture faults(at, static_cast<int>(rows));
  get_k_and_s_params p{
      .lengths = lens.view(live_rows.data(), cap),
      .page_table = device_table.data(),
      .page_table_stride = stride,
      .page_columns = columns,
      .cache = device_cache(layout, buffer.data()),
      .cu_seqlens_k = options.wide_sums ? index_sink(wide_sums.data()) : index_sink(sums.data()),
      .keys = options.keys ? keys.data() : nullptr,
      .scales = options.scales ? scales.data() : nullptr,
      .capacity = in.capacity,
      .kept = static_cast<std::int64_t>(seed % 3) * 7 - 1,
      .faults = faults.sink()};
  if (options.page_map) p.page_map = page_map.view;
  get_k_and_s(at, p);

  const auto want = !options.scales ? reference::get_k(in, bytes)
                    : !options.keys ? reference::get_s(in, bytes)
                                    : reference::get_k_and_s(in, bytes);
  keys.expect(want.keys);
  const auto got = scales.get();
  CHECK_MESSAGE(check_live(got, want.scales).empty(), check_live(got, want.scales));
  CHECK_MESSAGE(check_untouched(got, 0xdeadbeef, want.scales).empty(),
                check_untouched(got, 0xdeadbeef, want.scales));
  for (std::int64_t r = in.n; r < rows; ++r) length[r] = 0;
  const auto offsets = reference::fixed_vector("get_k_and_s", "cu_seqlens_k", reference::cumsum0(length));
  if (options.wide_sums)
    wide_sums.expect(offsets);
  else
    sums.expect(offsets);
  expect_faults(op_id::get_k_and_s, faults, want.faults);
  if (options.bad_page && !options.cut)
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(want.scales.state.size()); ++i)
      if (want.scales.state[i] == reference::cell::open) CHECK(got[i] == 0);  // never what lay elsewhere
}

}  // namespace

TEST_CASE("sparse: index-K store puts keys and scales where their slots say, at every page size") {
  for (int i = 0; i < test_rounds(44); ++i)
    compare_set(test_seed() + i, std::int64_t{1} << (i % 11), 1 + (i * 13) % 70, i % 2 == 0);
  compare_set(test_seed() + 50, 64, 3000, false);
}

TEST_CASE("sparse: index-K gather of random ragged batches equals the definitions, at every page size") {
  for (int i = 0; i < test_rounds(44); ++i)
    compare_get(test_seed() + 100 + i, {.P = std::int64_t{1} << (i % 11),
                                        .page_map = i % 4 == 1,
                                        .keys = i % 3 != 1,
                                        .scales = i % 3 != 2,
                                        .wide_sums = i % 4 < 2});
  // one part, several, and several for each warp of a GPU
  for (const std::int64_t pages : {1, 5, 40})
    compare_get(test_seed() + 200 + pages, {.P = 64, .rows = 7, .most_pages = test_small() ? 5 : pages});
  if (!test_small())
    compare_get(test_seed() + 250, {.P = 64, .rows = 9, .most_pages = 900, .least_pages = 900});
}

TEST_CASE("sparse: index-K gather of more rows than a block has threads") {
  compare_get(test_seed() + 300, {.P = 4, .rows = 300});
  compare_get(test_seed() + 301, {.P = 1, .rows = 700, .cut = true});
}

TEST_CASE(
    "sparse: index-K gather by tables around a tile's width and far past it, one row of the whole width") {
  std::uint64_t seed = test_seed() + 500;
  for (const std::int64_t width : captured_widths())
    for (const std::int64_t P : {1, 64}) {
      const std::int64_t columns = (width + P - 1) / P;
      // the definitions' loops over bytes: of many tokens the scales alone, or the first keys
      const bool keys = width <= 1000;
      compare_get(seed++, {.P = P, .rows = 3, .columns = columns, .longest = 2000, .keys = keys});
      if (!keys)
        compare_get(seed++, {.P = P, .rows = 3, .columns = columns, .longest = 2000, .most_capacity = 3000});
    }
}

TEST_CASE("sparse: index-K gather clamps and reports lengths, pages and capacity") {
  for (int i = 0; i < test_rounds(36); ++i)
    compare_get(test_seed() + 400 + i, {.P = i % 2 ? 64 : 2,
                                        .bad_length = i % 3 == 0,
                                        .bad_page = i % 3 == 1,
                                        .cut = i % 3 == 2 || i % 5 == 0,
                                        .page_map = i % 6 == 1});
}

TEST_CASE("sparse: index-K gather sees both words of an int64 length, and both deltas") {
  for (int form = 0; form < 8; ++form)
    compare_get((test_seed() & ~std::uint64_t{7}) + 480 + form, {.P = 4, .rows = 60, .bad_length = true});
}

TEST_CASE("sparse: index-K gather reports the bad pages of each of the short rows of one part") {
  for (int i = 0; i < test_rounds(12); ++i)
    compare_get(test_seed() + 460 + i,
                {.P = 1 + i % 2, .rows = 60, .most_pages = 2, .bad_page = true, .page_map = i % 3 == 0});
}
