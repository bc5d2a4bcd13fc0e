#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "tests/reference/example_batch.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"

namespace stepgraph::reference {
namespace {

TEST_CASE("reference: a batch by hand, lengths and tokens") {
  const derived d = derive(example_batch());
  CHECK(d.len == integers{5, 8, 1, 0});
  CHECK(d.E == integers{2, 0, 3, 0});
  CHECK(d.base == integers{3, 8, -2, 0});
  CHECK(d.cu_q == integers{0, 2, 2, 5, 5});
  CHECK(d.T == 5);
  CHECK(d.row_of == integers{0, 0, 2, 2, 2, 0, 0, 0});
  // row 0: 3 + 0 + 1, 3 + 1 + 1; row 2: -2 + 0 + 1 and -2 + 1 + 1 are not positive, -2 + 2 + 1 = 1
  CHECK(d.c == integers{4, 5, 0, 0, 1, 0, 0, 0});
  CHECK(d.position == integers{3, 4, 0, 0, 0, 0, 0, 0});
  CHECK(d.faults.empty());  // len < E is no fault
}

TEST_CASE("reference: clamps are reported with the value before them") {
  batch in = example_batch();
  in.delta_of = {-6, 5, 0, 7};  // lengths -1, 13, 1 with a cap of 12
  in.E[1] = 4;                  // Emax is 3
  in.E[2] = -1;
  in.C = 4;  // row 0 keeps 2 tokens, row 1 keeps 2 of 3
  const derived d = derive(in);
  CHECK(d.len == integers{0, 12, 1, 0});
  CHECK(d.E == integers{2, 3, 0, 0});
  CHECK(d.kept == integers{2, 2, 0, 0});
  CHECK(d.cu_q == integers{0, 2, 4, 4, 4});
  CHECK(d.c == integers{0, 0, 10, 11});  // row 1's base is 12 - 3: the dropped token still counts
  CHECK(d.faults == std::vector<fault>{{fault_kind::length, 0, -1},
                                       {fault_kind::query_tokens, 1, 4},
                                       {fault_kind::length, 1, 13},
                                       {fault_kind::query_tokens, 2, -1},
                                       {fault_kind::tokens_dropped, 1, 3}});
}

TEST_CASE("reference: token inputs by hand") {
  token_inputs_options options;
  options.out_cache_loc_skip = -7;
  const token_inputs_output out = token_inputs(example_batch(), options);
  // token 0: S(2, 3) = 31, token 1: S(2, 4) = 12, tokens 2 and 3 lie before the cache, token 4: S(4, 0) = 32
  CHECK(out.out_cache_loc.value == integers{31, 12, -7, -7, 32, -7, -7, -7});
  CHECK(out.last_row.value == integers{1, 0, 4, 0});
  CHECK(out.causal_length.value == integers{4, 5, 0, 0, 1, 0, 0, 0});
  CHECK(token_inputs(example_batch_of_pages(), options).out_cache_loc.value == out.out_cache_loc.value);

  // siblings in a tree share a position, never a slot; base is 3 in row 0 and -2 in row 2
  options.depth = {0, 0, 0, 1, 3, 99, 99, 99};
  CHECK(token_inputs(example_batch(), options).position.value == integers{3, 3, 0, 0, 1, 0, 0, 0});

  // page 7 is 1 now, so 31 is 7; page 3 is 2, so 12 is 8; page 8 is 3, so 32 is 12
  batch mapped = example_batch();
  mapped.page_map = example_page_map();
  CHECK(token_inputs(mapped).out_cache_loc.value == integers{7, 8, -1, -1, 12, -1, -1, -1});
}

TEST_CASE("reference: decode metadata by hand") {
  decode_options options;
  options.full_to_swa = example_slot_map();
  options.swa_page_table.skip = 0;
  options.swa_out_cache_loc_skip = 0;
  const decode_output out = decode_metadata(example_batch(), options);
  CHECK(out.cache_seqlens.value == integers{5, 8, 1, 0});
  CHECK(out.cu_seqlens_k.value == integers{0, 5, 13, 14, 14});
  CHECK(out.page_table.line == lines{{7, 3}, {6, 2}, {8}, {}});
  CHECK(out.swa_page_table.line == lines{{1, 2}, {0, 5}, {3}, {}});  // page 6 is unmapped
  CHECK(out.swa_out_cache_loc.value == integers{7, 8, 0, 0, 12, 0, 0, 0});
  CHECK(out.cu_seqlens_q.state == std::vector<cell>(5, cell::untouched));

  decode_options by_page;
  by_page.swa_page_map = example_page_map();
  for (const batch& in : {example_batch(), example_batch_of_pages()}) {
    const decode_output same = decode_metadata(in, by_page);
    CHECK(same.page_table.line == out.page_table.line);
    CHECK(same.swa_page_table.line == lines{{1, 2}, {-1, 5}, {3}, {}});
    CHECK(same.swa_out_cache_loc.value == integers{7, 8, -1, -1, 12, -1, -1, -1});
  }

  batch mapped = example_batch();
  mapped.page_map = example_page_map();
  CHECK(decode_metadata(mapped).page_table.line == lines{{1, 2}, {-1, 5}, {3}, {}});

  options.page_tables = false;
  const decode_output lengths = decode_metadata(example_batch(), options);
  CHECK(lengths.cu_seqlens_k.value == out.cu_seqlens_k.value);
  CHECK(lengths.page_table.line.empty());
  CHECK(lengths.swa_page_table.line.empty());
}

TEST_CASE("reference: tails by hand") {
  decode_options options;
  options.page_table.tail = {tail_mode::multiple, 2, 99};
  CHECK(decode_metadata(example_batch(), options).page_table.line == lines{{7, 3}, {6, 2}, {8, 99}, {}});
  options.page_table.tail = {tail_mode::multiple, 4, 99};  // the table is 3 wide
  CHECK(decode_metadata(example_batch(), options).page_table.line ==
        lines{{7, 3, 99}, {6, 2, 99}, {8, 99, 99}, {}});
  options.page_table.tail = {tail_mode::whole, 1, 0};
  CHECK(decode_metadata(example_batch(), options).page_table.line ==
        lines{{7, 3, 0}, {6, 2, 0}, {8, 0, 0}, {0, 0, 0}});
}

TEST_CASE("reference: cu_seqlens_q in its three modes") {
  decode_options options;
  CHECK(multi_head_metadata(example_batch(), options).cu_seqlens_q.state ==
        std::vector<cell>(5, cell::untouched));
  options.cu_seqlens_q = cu_seqlens_q_mode::cumsum_tokens;
  CHECK(multi_head_metadata(example_batch(), options).cu_seqlens_q.value == integers{0, 2, 2, 5, 5});
  options.cu_seqlens_q = cu_seqlens_q_mode::rows_times_stride;
  options.q_stride = 3;
  CHECK(multi_head_metadata(example_batch(), options).cu_seqlens_q.value == integers{0, 3, 6, 9, 9});
  CHECK(draft_extend_metadata(example_batch()).cu_seqlens_q.value == integers{0, 2, 2, 5, 5});
}

TEST_CASE("reference: draft steps by hand") {
  batch in = example_batch();
  in.E = {1, 0, 1, 1 << 30};
  in.delta = 77;  // a step's own delta takes its place
  draft_steps_options options;
  options.steps = 2;
  const draft_steps_output out = draft_steps_metadata(in, options);
  CHECK(out.cache_seqlens[0].value == integers{6, 9, 2, 0});
  CHECK(out.cache_seqlens[1].value == integers{7, 10, 3, 0});
  CHECK(out.cu_seqlens_k[0].value == integers{0, 6, 15, 17, 17});
  CHECK(out.cu_seqlens_k[1].value == integers{0, 7, 17, 20, 20});
  // S(2, 5) and S(4, 1), then S(2, 6) and S(4, 2)
  CHECK(out.out_cache_loc[0].value == integers{13, 33, -1, -1, -1, -1, -1, -1});
  CHECK(out.out_cache_loc[1].value == integers{14, 34, -1, -1, -1, -1, -1, -1});
  CHECK(out.position[0].value == integers{5, 1, 0, 0, 0, 0, 0, 0});
  CHECK(out.position[1].value == integers{6, 2, 0, 0, 0, 0, 0, 0});
  CHECK(out.page_table.line == lines{{7, 3}, {6, 2, 9}, {8}, {}});
}

TEST_CASE("reference: what a wrong index leads to") {
  batch in = example_batch();
  in.q[0] = 5;  // the table has 5 lines
  const auto slot = in.source.entry;
  in.source.entry = [slot](std::int64_t q, std::int64_t t) { return q == 0 && t == 4 ? 400 : slot(q, t); };
  decode_options options;
  options.page_table.skip = 0;
  options.full_to_swa = example_slot_map();
  const decode_output out = decode_metadata(in, options);
  CHECK(out.cache_seqlens.value == integers{5, 8, 1, 0});
  CHECK(out.page_table.line == lines{{0, 0}, {6, 100}, {8}, {}});  // without a map a slot has no bound
  CHECK(out.swa_page_table.line == lines{{-1, -1}, {-1, -1}, {3}, {}});
  CHECK(out.faults == std::vector<fault>{{fault_kind::request_index, 0, 5}, {fault_kind::slot, 1, 400}});
}

TEST_CASE("reference: checks name op, output, row, column and both values") {
  const decode_output out = decode_metadata(example_batch());
  std::vector<std::int32_t> table(20, -55);  // 4 lines of stride 5
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t p = 0; p < out.page_table.line[r].size(); ++p) {
      table[r * 5 + p] = static_cast<std::int32_t>(out.page_table.line[r][p]);
    }
  }
  CHECK(check_live(table, 5, out.page_table) == "");
  CHECK(check_untouched(table, 5, -55, out.page_table) == "");
  table[6] = 1;
  table[11] = 2;
  CHECK(check_live(table, 5, out.page_table) ==
        "decode metadata: page_table row 1 column 1: expected 2, got 1");
  CHECK(check_untouched(table, 5, -55, out.page_table) ==
        "decode metadata: page_table row 2 column 1: expected untouched poison, got 2");
  const std::vector<std::int64_t> lengths = {5, 8, 1, 0, -55};
  CHECK(check_live(lengths, out.cache_seqlens) == "");
  CHECK(check_untouched(lengths, -55, out.cache_seqlens) == "");
  CHECK(check_live(std::vector<int>{5}, out.cache_seqlens) ==
        "decode metadata: cache_seqlens needs 4 elements, there are 1");
}

}  // namespace
}  // namespace stepgraph::reference
