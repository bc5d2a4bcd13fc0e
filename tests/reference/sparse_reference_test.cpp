#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "tests/reference/example_batch.hpp"
#include "tests/reference/sparse.hpp"

namespace stepgraph::reference {
namespace {

TEST_CASE("reference: index-K store by hand") {
  const index_k_layout layout{2, 2,
                              0};  // 2 pages of 2 tokens: 2 * 128 bytes of keys, then 2 scales, so 264 a page
  CHECK(layout.bytes() == 528);
  std::vector<std::uint8_t> keys(4 * 128);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::uint8_t>(i / 128 + 1);
  const std::vector<std::uint32_t> scales = {0x04030201, 0x08070605, 0x0c0b0a09, 0x100f0e0d};
  // token 0 to page 1 place 1, token 1 nowhere, token 2 past the cache; token 3 is dead
  const set_k_and_s_output out = set_k_and_s(layout, 3, {3, -1, 4, 0}, keys, scales);
  std::int64_t written = 0;
  for (cell state : out.buffer.state) written += state == cell::defined ? 1 : 0;
  CHECK(written == 132);
  CHECK(out.buffer.state[391] == cell::untouched);
  CHECK(out.buffer.value[392] == 1);  // 264 + 128
  CHECK(out.buffer.value[519] == 1);
  CHECK(out.buffer.value[524] == 1);  // 264 + 256 + 4
  CHECK(out.buffer.value[527] == 4);
  CHECK(out.faults == std::vector<fault>{{fault_kind::slot, 2, 4}});

  // two tokens of one slot: which one stays is open where they differ
  const set_k_and_s_output twice = set_k_and_s(layout, 2, {0, 0}, keys, scales);
  CHECK(twice.buffer.state[0] == cell::open);
}

TEST_CASE("reference: index-K gather by hand") {
  index_k_gather in;
  in.layout = {2, 3, 300};
  std::vector<std::uint8_t> buffer(900);
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<std::uint8_t>(i % 251);
  in.n = 2;
  in.len = {3, 1, 1 << 30};
  in.table = {3, 2, [](std::int64_t r, std::int64_t p) -> std::int64_t {
                const std::int64_t pages[3][2] = {{2, 0}, {-1, 0}, {99, 99}};
                return pages[r][p];
              }};
  in.capacity = 5;
  const get_output out = get_k_and_s(in, buffer);
  CHECK(out.keys.value[0] == 600 % 251);              // token 0: page 2 place 0
  CHECK(out.keys.value[128 + 5] == (728 + 5) % 251);  // token 1: page 2 place 1
  CHECK(out.keys.value[256] == 0);                    // token 2: page 0 place 0
  CHECK(out.keys.value[256 + 7] == 7);
  // token 1's scale: 600 + 256 + 4 = 860, that is 107, 108, 109, 110 modulo 251
  CHECK(out.scales.value[1] == 107 + (108 << 8) + (109 << 16) + (110 << 24));
  CHECK(out.scales.state[2] == cell::defined);
  CHECK(out.scales.state[3] == cell::open);  // no page
  CHECK(out.scales.state[4] == cell::untouched);
  CHECK(out.faults == std::vector<fault>{{fault_kind::page, 1, -1}});
  CHECK(get_k(in, buffer).keys.value == out.keys.value);
  CHECK(get_k(in, buffer).scales.value.empty());
  CHECK(get_s(in, buffer).scales.value == out.scales.value);
  CHECK(get_s(in, buffer).keys.value.empty());

  in.capacity = 2;
  CHECK(get_s(in, buffer).faults ==
        std::vector<fault>{{fault_kind::capacity, 0, 3}, {fault_kind::capacity, 1, 4}});
}

TEST_CASE("reference: top-k to slots by hand") {
  top_k_to_slots_input in;
  in.T = 3;
  in.row_of = {0, 1, 1, 99};
  in.topk = 3;
  in.index = [](std::int64_t t, std::int64_t i) -> std::int64_t {
    const std::int64_t topk[3][3] = {{2, -1, 0}, {1, 5, -1}, {0, 2, -1}};
    return topk[t][i];
  };
  in.table = {2, 3, [](std::int64_t line, std::int64_t x) -> std::int64_t {
                const std::int64_t slots[2][3] = {{10, 11, 12}, {20, -6, 22}};
                return slots[line][x];
              }};
  top_k_to_slots_output out = top_k_to_slots(in);
  CHECK(out.slots.line == lines{{12, -1, 10}, {-1, -1, -1}, {20, 22, -1}, {}});
  CHECK(out.count.value == integers{2, 0, 2, 0});
  CHECK(out.last_plus_one.value == integers{3, 1, 2, 0});
  CHECK(out.faults == std::vector<fault>{{fault_kind::top_k, 1, 5}});

  in.expanded = true;
  in.table = {4, 3, [](std::int64_t line, std::int64_t x) { return 100 * line + x; }};
  out = top_k_to_slots(in);
  CHECK(out.slots.line == lines{{2, -1, 0}, {101, -1, -1}, {200, 202, -1}, {}});
}

TEST_CASE("reference: combine top-k and window by hand") {
  combine_input in;
  in.B = 3;
  in.C = 5;
  in.n = 2;
  in.query_start_loc = {10, 12, 14, 14};  // a chunk that begins at token 10
  in.len = {7, 1, 1 << 30};
  in.cap = 1000;
  in.gather_len = {4, 1, 1 << 30};  // from positions 3 and 0 on
  in.compressed_base = {100, 400, 0};
  in.swa_base = {200, 300, 0};
  in.ratio = 2;
  in.window = 3;
  in.topk = 2;
  in.index = [](std::int64_t t, std::int64_t i) -> std::int64_t { return t == 0 && i == 1 ? -1 : 4 + i; };
  combine_output out = combine_top_k_and_window(in);
  CHECK(in.padded_width() == 128);
  const auto head = [&](std::size_t t) {
    const integers& line = out.indices.line[t];
    CHECK(line.size() == 128);
    for (std::size_t x = 6; x < line.size(); ++x) CHECK(line[x] == -1);
    return integers(line.begin(), line.begin() + 6);
  };
  // pos 5: 2 of 3 groups, then positions 3, 4, 5; pos 6: positions 4, 5, 6
  CHECK(head(0) == integers{104, -1, 200, 201, 202, -1});
  CHECK(head(1) == integers{104, 105, 201, 202, 203, -1});
  // row 1 is fresh: its first token has length 0, its second sees itself alone
  CHECK(head(2) == integers{-1, -1, -1, -1, -1, -1});
  CHECK(head(3) == integers{300, -1, -1, -1, -1, -1});
  CHECK(out.indices.line[4].empty());
  CHECK(out.length.value == integers{5, 5, 0, 1, 0});

  CHECK(out.faults.empty());
  // one token fewer gathered: pos 5 has no index for position 3
  in.gather_len[0] = 3;
  out = combine_top_k_and_window(in);
  CHECK(head(0) == integers{104, -1, -1, 200, 201, -1});
  CHECK(head(1) == integers{104, 105, 200, 201, 202, -1});
  CHECK(out.faults == std::vector<fault>{{fault_kind::window, 0, 3}});
  in.gather_len[0] = 4;

  // an output of 130 columns, dead lines included
  in.columns = 130;
  in.tail = {tail_mode::whole, 1, 9};
  out = combine_top_k_and_window(in);
  CHECK(out.indices.line[0][4] == 202);
  CHECK(out.indices.line[0][127] == -1);
  CHECK(integers(out.indices.line[0].begin() + 128, out.indices.line[0].end()) == integers{9, 9});
  CHECK(out.indices.line[4] == integers(130, 9));
  in.tail = {tail_mode::multiple, 129, 9};
  out = combine_top_k_and_window(in);
  CHECK(out.indices.line[1].size() == 129);
  CHECK(out.indices.line[1].back() == 9);
  CHECK(out.indices.line[4].empty());
  in.columns = 0;
  in.tail = {};
  // a length over its bound
  in.cap = 6;
  CHECK(combine_top_k_and_window(in).faults == std::vector<fault>{{fault_kind::length, 0, 7}});
  in.cap = 1000;

  in.topk = 0;
  in.index = nullptr;
  out = combine_top_k_and_window(in);
  CHECK(head(1) == integers{201, 202, 203, -1, -1, -1});
  CHECK(out.length.value == integers{3, 3, 0, 1, 0});
  in.C = 3;
  CHECK(combine_top_k_and_window(in).faults == std::vector<fault>{{fault_kind::tokens_dropped, 1, 2}});
}

TEST_CASE("reference: window token ids by hand") {
  window_token_ids_options options;
  options.window = 3;
  options.full_to_swa = example_slot_map();
  options.capacity = 9;
  window_token_ids_output out = window_token_ids(example_batch(), options);
  // min(5, 2 + 2), min(8, 0 + 2), min(1, 3 + 2)
  CHECK(out.gather_len.value == integers{4, 2, 1, 0});
  CHECK(out.offsets.value == integers{0, 4, 6, 7, 7});
  // slots 29 30 31 12, 10 11, 32
  CHECK(out.ids.value == integers{5, 6, 7, 8, 22, 23, 12, 0, 0});
  CHECK(out.ids.state[6] == cell::defined);
  CHECK(out.ids.state[7] == cell::untouched);
  options.capacity = 5;
  out = window_token_ids(example_batch(), options);
  CHECK(out.ids.value == integers{5, 6, 7, 8, 22});
  CHECK(out.faults == std::vector<fault>{{fault_kind::capacity, 1, 6}, {fault_kind::capacity, 2, 7}});
}

}  // namespace
}  // namespace stepgraph::reference
