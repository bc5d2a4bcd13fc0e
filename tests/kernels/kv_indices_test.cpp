#include "kernels/metadata/kv_indices.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/metadata/spec_page_table.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/kv_indices.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

void compare(const reference::batch& in, int i) {
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  const reference::derived d = reference::derive(in);
  reference::random_integers random(in.seed + 9);
  reference::kv_indices_options options{.start = {}, .capacity = 0, .slot_map = {}, .skip = -(i % 2)};
  std::int64_t all = 0;
  for (std::int64_t r = 0; r < in.B; ++r) {
    options.start.push_back(random.between(-2, d.len[r] + 2));
    all += d.len[r];
  }
  if (i % 3 == 0) options.start.clear();
  options.capacity = std::max<std::int64_t>(1, i % 4 == 0 ? all / 2 : all + 5);
  const auto slots = reference::random_slot_map(in, in.seed + 3);
  const auto pages = reference::random_page_map(in.pool_pages, in.seed + 4);
  const device_map slot_map(at, slots, i % 2 == 0), page_map(at, in.page_map ? *in.page_map : pages, true);
  if (!in.page_map && i % 5 < 2) options.slot_map = slots;
  const device_vector<std::int32_t> start(
      at, options.start.empty() ? std::vector<std::int32_t>{0} : narrow(options.start));
  const output_vector<std::int64_t> indptr(at, in.B + 1), wide(at, options.capacity);
  const output_vector<std::int32_t> indices(at, options.capacity);
  kv_indices_params p{.lengths = batch.lengths,
                      .requests = batch.requests(),
                      .source = batch.source,
                      .start = options.start.empty() ? nullptr : start.data(),
                      .skip = -(i % 2),
                      .indptr = indptr.data(),
                      .indices = i % 2 ? index_sink(wide.data()) : index_sink(indices.data()),
                      .capacity = options.capacity,
                      .faults = batch.faults};
  if (in.page_map) p.page_map = page_map.view;
  if (options.slot_map) p.slot_map = slot_map.view;
  kv_indices(at, p);
  const auto want = reference::kv_indices(in, options);
  indptr.expect(want.indptr);
  if (i % 2)
    wide.expect(want.indices);
  else
    indices.expect(want.indices);
  expect_faults(op_id::kv_indices, batch.reports, want.faults);
}

void compare_unified(reference::batch in, int i) {
  in.C = std::max<std::int64_t>(in.C, 1);
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  const reference::derived d = reference::derive(in);
  reference::random_integers random(in.seed + 9);
  reference::unified_kv_indices_input input;
  input.prefix_indptr.push_back(0);
  for (std::int64_t r = 0; r < in.B; ++r)
    input.prefix_indptr.push_back(r < d.n ? input.prefix_indptr.back() + random.between(0, in.cap())
                                          : 0x70000000);
  const std::int64_t prefixes = input.prefix_indptr[d.n];
  // a prefix longer than a row can be, and one that ends before it begins
  if (i % 10 == 3 && d.n > 1) std::swap(input.prefix_indptr[1], input.prefix_indptr[d.n]);
  for (std::int64_t x = 0; x < prefixes; ++x)
    input.prefix_indices.push_back(random.one_in(9) ? -1 : random.below(1000));
  for (std::int64_t x = 0; x < in.C; ++x) input.extend_indices.push_back(2000 + x);
  if (i % 2) {
    for (std::int64_t r = 0; r < in.B; ++r)
      input.extend_start.push_back(random.between(0, std::max<std::int64_t>(0, in.C - in.Emax)));
    for (std::int64_t r = 0; r < d.n && i % 8 == 7; ++r)
      if (random.one_in(3)) input.extend_start[r] = random.one_in(2) ? -1 : in.C - 1;
  }
  input.capacity = std::max<std::int64_t>(1, i % 4 == 0 ? prefixes / 2 : prefixes + in.C + 3);
  input.skip = -(i % 2);
  const device_vector<std::int32_t> prefix(
      at, input.prefix_indices.empty() ? std::vector<std::int32_t>{0} : narrow(input.prefix_indices)),
      extend(at, narrow(input.extend_indices)),
      start(at, input.extend_start.empty() ? std::vector<std::int32_t>{0} : narrow(input.extend_start));
  const device_vector<std::int64_t> prefix_indptr(at, input.prefix_indptr);
  const output_vector<std::int32_t> indptr(at, in.B + 1), indices(at, input.capacity);
  unified_kv_indices(at, {.lengths = batch.lengths,
                          .query = device_query(in, batch),
                          .prefix_indptr = prefix_indptr.data(),
                          .prefix_indices = prefix.data(),
                          .prefix_count = prefixes,
                          .extend_indices = extend.data(),
                          .extend_count = in.C,
                          .extend_start = input.extend_start.empty() ? nullptr : start.data(),
                          .skip = static_cast<std::int32_t>(input.skip),
                          .indptr = indptr.data(),
                          .indices = indices.data(),
                          .capacity = input.capacity,
                          .faults = batch.faults});
  const auto want = reference::unified_kv_indices(in, input);
  indptr.expect(want.indptr);
  indices.expect(want.indices);
  expect_faults(op_id::unified_kv_indices, batch.reports, want.faults);
}

void compare_spec(std::uint64_t seed, std::int64_t tokens, reference::tail_rule tail, std::int64_t most) {
  CAPTURE(seed);
  const stream at(test_device());
  reference::random_integers random(seed);
  const std::int64_t rows = random.between(1, 9), width_a = random.between(1, most),
                     width_b = random.between(1, 40), stride_a = width_a + random.below(3),
                     stride_b = width_b + random.below(3);
  reference::spec_page_table_input in;
  in.T = random.between(0, tokens);
  in.width = random.between(1, width_a + width_b);
  in.rule = {-static_cast<std::int64_t>(seed % 2), tail};
  std::vector<std::int32_t> a(rows * stride_a), b(tokens * stride_b);
  for (auto* table : {&a, &b})
    for (auto& entry : *table)
      entry = random.one_in(9) ? -1 : static_cast<std::int32_t>(random.below(1 << 20));
  in.table_a = {rows, width_a,
                [&](std::int64_t line, std::int64_t x) { return std::int64_t{a[line * stride_a + x]}; }};
  in.table_b = {tokens, width_b,
                [&](std::int64_t line, std::int64_t x) { return std::int64_t{b[line * stride_b + x]}; }};
  for (std::int64_t r = 0; r < rows; ++r)
    in.len_a.push_back(random.between(random.one_in(5) ? -1 : 0, width_a + random.one_in(5)));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const bool live = t < in.T;
    in.row_of.push_back(!live || random.one_in(9) ? rows + random.below(2) : random.below(rows));
    in.len_b.push_back(live ? random.between(random.one_in(5) ? -1 : 0, width_b) : 1 << 30);
  }
  const device_vector<std::int32_t> live(at, {static_cast<std::int32_t>(in.T)}),
      row_of(at, narrow(in.row_of)), table_a(at, a), table_b(at, b), len_a(at, narrow(in.len_a)),
      len_b(at, narrow(in.len_b));
  const fault_fixture faults(at, static_cast<int>(tokens));
  const output_table table(at, tokens, in.width, seed % 3, in.rule);
  const output_vector<std::int32_t> total(at, tokens);
  spec_page_table(
      at, {.live_tokens = live.data(),
           .tokens = static_cast<std::int32_t>(tokens),
           .row_of = row_of.data(),
           .by_row = {table_a.data(), stride_a, static_cast<std::int32_t>(rows), width_a, len_a.data()},
           .by_token = {table_b.data(), stride_b, static_cast<std::int32_t>(tokens), width_b, len_b.data()},
           .table = table.sink,
           .total = total.data(),
           .faults = faults.sink()});
  const auto want = reference::spec_page_table(in);
  table.expect(want.table);
  total.expect(want.total);
  expect_faults(op_id::spec_page_table, faults, want.faults);
}

}  // namespace

TEST_CASE("KV indices of random ragged batches equal the definitions") {
  for (int i = 0; i < test_rounds(60); ++i)
    compare(reference::random_batch(test_seed() + i, {.page_granular = i % 2 == 0,
                                                      .page_map = i % 5 == 2,
                                                      .poison = true,
                                                      .bad_request = i % 6 == 0,
                                                      .bad_length = i % 6 == 1}),
            i);
  for (int i = 0; i < test_rounds(10); ++i)
    compare(reference::random_batch(test_seed() + 80 + i, {.page_granular = i % 2 == 0,
                                                           .page_map = i % 3 == 0,
                                                           .bad_request = i % 4 == 0,
                                                           .bad_slot = true}),
            i);
  compare(reference::random_batch(test_seed() + 99, {.rows = 300, .page_size = 1, .max_context = 30}), 1);
  compare(reference::random_batch(test_seed() + 98, {.rows = 3, .page_size = 1, .max_context = 20000}), 2);
}

TEST_CASE("unified KV indices of random ragged batches equal the definitions") {
  for (int i = 0; i < test_rounds(60); ++i)
    compare_unified(
        reference::random_batch(test_seed() + 100 + i,
                                {.poison = true, .bad_tokens = i % 6 == 1, .drop_tokens = i % 6 == 2}),
        i);
  compare_unified(reference::random_batch(test_seed() + 199,
                                          {.rows = 300, .max_tokens = 3, .page_size = 1, .max_context = 30}),
                  1);
}

TEST_CASE("spec page tables join a row's entries and a token's own") {
  for (int i = 0; i < test_rounds(60); ++i) compare_spec(test_seed() + 200 + i, 1 + i % 20, some_tail(i), 60);
  compare_spec(test_seed() + 300, 300, {}, 9000);
}

TEST_CASE("KV indices refuse by name what the host can see") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 64, 0);
  kv_indices_params p{
      .lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 16},
      .requests = numbers.data(),
      .source = {.table = numbers.data(), .row_stride = 16, .requests = 2, .columns = 16},
      .indptr = numbers.data() + 32,
      .indices = numbers.data() + 40,
      .capacity = 0};
  CHECK_THROWS_WITH_AS(kv_indices(at, p), doctest::Contains("capacity must be positive"), invalid_argument);
  p.capacity = 8;
  p.slot_map = p.page_map = {numbers.data(), 4};
  CHECK_THROWS_WITH_AS(kv_indices(at, p), doctest::Contains("exclude each other"), invalid_argument);
  p.slot_map = {};
  p.source.columns = p.source.row_stride = p.lengths.cap = INT32_MAX;
  CHECK_THROWS_WITH_AS(kv_indices(at, p), doctest::Contains("offer int64"), invalid_argument);
}

TEST_CASE("KV indices at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths()) {
    compare(reference::random_batch(
                test_seed() + width,
                {.rows = 3, .page_size = 1, .max_context = width, .length_limit = 5000, .poison = true}),
            1);
    compare_unified(
        reference::random_batch(
            test_seed() + width,
            {.rows = 3, .page_size = 1, .max_context = width, .length_limit = 5000, .poison = true}),
        2);
    compare_spec(test_seed() + width, 3, {}, width);
  }
}
