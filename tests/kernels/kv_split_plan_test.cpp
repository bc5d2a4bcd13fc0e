#include "kernels/metadata/kv_split_plan.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/kv_split.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

struct plan {
  std::vector<reference::kv_chunk> chunks;
  std::vector<std::int64_t> len;
};

plan make_plan(const reference::batch& in, kv_split_plan_params p) {
  const stream at(test_device());
  const device_batch batch(at, in);
  const device_vector<std::int32_t> chunks(at, std::int64_t{p.capacity} * 4 + 4, output_poison);
  const output_vector<std::int32_t> cu(at, in.B + 1);
  p.lengths = batch.lengths;
  p.faults = batch.faults;
  p.chunks = reinterpret_cast<kv_split_chunk*>(chunks.data());
  p.cu_chunks = cu.data();
  kv_split_plan(at, p);
  const auto sums = cu.get();
  const auto raw = chunks.get();
  const reference::derived d = reference::derive(in);
  plan out;
  out.len.assign(d.len.begin(), d.len.begin() + d.n);
  REQUIRE(sums[0] == 0);
  REQUIRE(sums[in.B] <= p.capacity);
  for (std::int64_t r = d.n; r < in.B; ++r) CHECK(sums[r + 1] == sums[r]);
  for (std::int32_t i = 0; i < sums[in.B]; ++i) {
    const std::int32_t* const c = raw.data() + 4 * i;
    CHECK(i == sums[c[0]] + c[3]);
    out.chunks.push_back({c[0], c[1], c[2]});
  }
  for (std::size_t i = 4 * sums[in.B]; i < raw.size(); ++i) CHECK(raw[i] == output_poison);
  const std::string why = reference::check_kv_split(out.chunks, out.len, p.tile, p.max_splits, p.capacity);
  CHECK_MESSAGE(why.empty(), why);
  expect_faults(op_id::kv_split_plan, batch.reports, reference::without_tokens(d.faults));
  return out;
}

}  // namespace

TEST_CASE("a split plan covers every row in order, within its limits") {
  for (int i = 0; i < test_rounds(40); ++i) {
    const auto in = reference::random_batch(
        test_seed() + i,
        {.page_size = 1, .max_context = 1 + i * 97, .poison = true, .bad_length = i % 4 == 0});
    CAPTURE(reference::describe(in));
    const auto rows = static_cast<std::int32_t>(in.B);
    make_plan(in, {.tile = 1 + i % 64, .max_splits = 1 + i % 16, .workers = 132, .capacity = rows + i * 3});
    make_plan(in, {.tile = 16, .max_splits = 8, .workers = 4, .batch_invariant = true, .capacity = rows * 8});
  }
}

TEST_CASE("frozen-plan: one captured plan follows lengths across every threshold") {
  constexpr int rows = 3, capacity = 64;
  const stream at(test_device());
  const device_vector<std::int32_t> live(at, 1, rows), chunks(at, 4 * capacity, output_poison);
  const device_vector<std::int32_t> cu(at, rows + 1, output_poison);
  device_vector<std::int64_t> lengths(at, rows, std::int64_t{0});
  const kv_split_plan_params p{
      .lengths = {.live_rows = live.data(), .rows = rows, .seq_lens = lengths.data(), .cap = 1 << 20},
      .tile = 16,
      .max_splits = 8,
      .workers = 4,
      .capacity = capacity,
      .chunks = reinterpret_cast<kv_split_chunk*>(chunks.data()),
      .cu_chunks = cu.data()};
  graph_exec captured = capture(at, [&](stream_ref) { kv_split_plan(at, p); }).instantiate();
  for (const std::int64_t length : {0, 1, 15, 16, 17, 127, 128, 129, 1000, 100000, 1 << 20, 3})
    for (const std::int64_t other : {std::int64_t{0}, std::int64_t{16}, length}) {
      const std::vector<std::int64_t> now{length, other, 1};
      lengths.set(now);
      captured.launch(at);
      const auto raw = chunks.get();
      std::vector<reference::kv_chunk> made;
      for (std::int32_t i = 0; i < cu.get()[rows]; ++i)
        made.push_back({raw[4 * i], raw[4 * i + 1], raw[4 * i + 2]});
      const std::string why = reference::check_kv_split(made, now, p.tile, p.max_splits, p.capacity);
      CHECK_MESSAGE(why.empty(), why);
    }
}

TEST_CASE("a split plan balances ragged work over the workers") {
  for (int i = 0; i < test_rounds(20); ++i) {
    const auto in = reference::random_batch(
        test_seed() + 100 + i, {.rows = 16, .live_rows = 16, .page_size = 1, .max_context = 40000});
    const plan made = make_plan(in, {.tile = 64, .max_splits = 1024, .workers = 132, .capacity = 1024});
    const auto balance = reference::balance_of(made.chunks, 132);
    CAPTURE(balance.total);
    // work of fewer than four tiles a worker cannot be even
    if (balance.total > 132 * 64 * 16) CHECK(balance.ratio < 1.35);
  }
}

TEST_CASE("a batch-invariant plan splits a row by its own length alone") {
  plan before =
      make_plan(reference::random_batch(test_seed() + 200, {.rows = 4, .page_size = 1, .max_context = 500}),
                {.tile = 16, .max_splits = 8, .workers = 132, .batch_invariant = true, .capacity = 32});
  for (int i = 1; i < test_rounds(20); ++i) {
    const plan now = make_plan(
        reference::random_batch(test_seed() + 200 + i, {.rows = 40, .page_size = 1, .max_context = 500}),
        {.tile = 16, .max_splits = 8, .workers = 132, .batch_invariant = true, .capacity = 320});
    const std::string why = reference::check_batch_invariant(before.chunks, before.len, now.chunks, now.len);
    CHECK_MESSAGE(why.empty(), why);
    before = now;
  }
}

TEST_CASE("a split plan refuses a capacity that cannot hold it") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 64, 0);
  kv_split_plan_params p{
      .lengths = {.live_rows = numbers.data(), .rows = 4, .seq_lens = numbers.data(), .cap = 16},
      .tile = 4,
      .max_splits = 4,
      .workers = 8,
      .capacity = 3,
      .chunks = reinterpret_cast<kv_split_chunk*>(numbers.data()),
      .cu_chunks = numbers.data()};
  CHECK_THROWS_WITH_AS(kv_split_plan(at, p), doctest::Contains("capacity 3 is less than the 4 chunks"),
                       invalid_argument);
  p.batch_invariant = true;
  p.capacity = 15;
  CHECK_THROWS_WITH_AS(kv_split_plan(at, p), doctest::Contains("the 16 chunks"), invalid_argument);
}

TEST_CASE("a split plan at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths())
    for (const bool all_long : {false, true}) {
      const auto in = reference::random_batch(test_seed() + width, {.rows = 3,
                                                                    .page_size = 64,
                                                                    .max_context = width,
                                                                    .length_limit = all_long ? 0 : 5000,
                                                                    .page_granular = true,
                                                                    .poison = true});
      CAPTURE(reference::describe(in));
      make_plan(in, {.tile = 64, .max_splits = 4096, .workers = 132, .capacity = 3 * 4096});
      make_plan(in, {.tile = 16, .max_splits = 7, .workers = 132, .batch_invariant = true, .capacity = 21});
    }
}
