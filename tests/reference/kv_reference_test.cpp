#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "tests/reference/example_batch.hpp"
#include "tests/reference/kv_indices.hpp"
#include "tests/reference/kv_split.hpp"

namespace stepgraph::reference {
namespace {

TEST_CASE("reference: spec page table by hand") {
  spec_page_table_input in;
  in.T = 3;
  in.row_of = {0, 0, 1, 55};
  in.table_a = {2, 3, [](std::int64_t r, std::int64_t x) { return 10 * (r + 1) + x; }};
  in.len_a = {2, 9};  // 9 becomes 3
  in.table_b = {
      4, 2, [](std::int64_t t, std::int64_t x) -> std::int64_t { return t == 1 ? -4 : 100 * (t + 1) + x; }};
  in.len_b = {1, 1, 2, 55};
  in.width = 4;
  in.rule.skip = 0;
  const spec_page_table_output out = spec_page_table(in);
  // token 2: 3 entries of row 1 and 2 of its own are one more than the output holds
  CHECK(out.table.line == lines{{10, 11, 100}, {10, 11, 0}, {20, 21, 22, 300}, {}});
  CHECK(out.total.value == integers{3, 3, 4, 0});
  CHECK(out.faults == std::vector<fault>{{fault_kind::length, 2, 9}, {fault_kind::capacity, 2, 5}});
}

TEST_CASE("reference: kv indices by hand") {
  kv_indices_options options;
  options.capacity = 6;
  options.start = {2, 9, -1, 0};
  kv_indices_output out = kv_indices(example_batch(), options);
  CHECK(out.indptr.value == integers{0, 3, 3, 4, 4});
  CHECK(out.indices.value == integers{30, 31, 12, 32, 0, 0});
  CHECK(out.indices.state[3] == cell::defined);
  CHECK(out.indices.state[4] == cell::untouched);
  CHECK(out.faults == std::vector<fault>{{fault_kind::start, 1, 9}, {fault_kind::start, 2, -1}});

  options.start = {2, 8, 0, 0};
  options.capacity = 3;
  out = kv_indices(example_batch(), options);
  CHECK(out.indptr.value == integers{0, 3, 3, 4, 4});
  CHECK(out.indices.value == integers{30, 31, 12});
  CHECK(out.faults == std::vector<fault>{{fault_kind::capacity, 2, 4}});

  options.slot_map = example_slot_map();
  out = kv_indices(example_batch(), options);
  CHECK(out.indices.value == integers{6, 7, 8});
}

TEST_CASE("reference: unified kv indices by hand") {
  unified_kv_indices_input input;
  input.prefix_indptr = {0, 2, 2, 3, 1 << 30};
  input.prefix_indices = {50, -1, 52};
  input.extend_indices = {60, 61, 62, 63, 64};
  input.capacity = 8;
  input.skip = 0;
  kv_indices_output out = unified_kv_indices(example_batch(), input);
  CHECK(out.indptr.value == integers{0, 4, 4, 8, 8});
  CHECK(out.indices.value == integers{50, 0, 60, 61, 52, 62, 63, 64});
  CHECK(out.faults.empty());
  input.extend_start = {3, 0, 0, 1 << 30};
  out = unified_kv_indices(example_batch(), input);
  CHECK(out.indices.value == integers{50, 0, 63, 64, 52, 60, 61, 62});
  input.extend_start[2] = 3;  // the third entry lies past the array
  out = unified_kv_indices(example_batch(), input);
  CHECK(out.indices.value == integers{50, 0, 63, 64, 52, 63, 64, 0});
  CHECK(out.faults == std::vector<fault>{{fault_kind::column, 2, 5}});
}

TEST_CASE("reference: a kv split plan is checked property by property") {
  const integers len = {0, 5, 130};
  const std::vector<kv_chunk> good = {{1, 0, 5}, {2, 0, 64}, {2, 64, 128}, {2, 128, 130}};
  CHECK(check_kv_split(good, len, 64, 3, 4) == "");
  std::vector<kv_chunk> with_empty = good;
  with_empty.push_back({0, 0, 0});
  CHECK(check_kv_split(with_empty, len, 64, 3, 5) == "");
  CHECK(check_kv_split(good, len, 64, 3, 3) == "kv split: 4 chunks, capacity 3");
  CHECK(check_kv_split(good, len, 64, 2, 4) ==
        "kv split: chunk 3 (row 2, [128, 130)) is one too many of its row");
  CHECK(check_kv_split(good, len, 128, 3, 4) ==
        "kv split: chunk 1 (row 2, [0, 64)) is no multiple of the tile");
  CHECK(check_kv_split(good, {0, 5, 131}, 2, 3, 4) == "kv split: row 2 is covered up to 130 of 131");
  CHECK(check_kv_split(good, {0, 5, 129}, 2, 3, 4) ==
        "kv split: chunk 3 (row 2, [128, 130)) ends past its row");
  CHECK(check_kv_split(good, {0, 5}, 64, 3, 4) == "kv split: chunk 1 (row 2, [0, 64)) is of no live row");
  std::vector<kv_chunk> overlap = good;
  overlap[2].begin = 63;
  CHECK(check_kv_split(overlap, len, 64, 3, 4) ==
        "kv split: chunk 2 (row 2, [63, 128)) does not begin where the one before it ended");
}

TEST_CASE("reference: balance and batch invariance of a kv split plan") {
  // two workers: 64 | 64, then 2 to the first, 5 to the second
  const kv_split_balance balance = balance_of({{0, 0, 64}, {0, 64, 128}, {0, 128, 130}, {1, 0, 5}}, 2);
  CHECK(balance.total == 135);
  CHECK(balance.longest == 64);
  CHECK(balance.makespan == 69);
  CHECK(balance.ratio == doctest::Approx(69 * 2 / 135.0));

  const std::vector<kv_chunk> a = {{0, 0, 64}, {0, 64, 100}};
  const std::vector<kv_chunk> b = {{0, 0, 7}, {1, 0, 64}, {1, 64, 100}};
  const std::vector<kv_chunk> c = {{0, 0, 7}, {1, 0, 100}};
  CHECK(check_batch_invariant(a, {100}, b, {7, 100}) == "");
  CHECK(check_batch_invariant(a, {100}, c, {7, 100}) ==
        "kv split: rows 0 and 1 are both 100 long but split differently");
}

}  // namespace
}  // namespace stepgraph::reference
