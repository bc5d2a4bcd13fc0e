#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "tests/reference/dsa_metadata.hpp"
#include "tests/reference/example_batch.hpp"

namespace stepgraph::reference {
namespace {

TEST_CASE("reference: DSA lengths with and without pooled keys") {
  CHECK(dsa_len(0, 4, 1) == 0);
  CHECK(dsa_len(3, 4, 1) == 3);
  CHECK(dsa_len(9, 4, 1) == 4);
  CHECK(dsa_len(5, 2, 2) == 3);    // min(4, 2) + 1
  CHECK(dsa_len(7, 100, 4) == 7);  // min(4, 100) + 3
  CHECK(dsa_len(11, 4, 4) == 7);   // min(8, 4) + 3
}

TEST_CASE("reference: DSA metadata by hand, a line a row") {
  dsa_options options;
  options.topk = 4;
  options.token_table = true;
  options.mqa_tokens = 2;
  const dsa_output out = dsa_metadata(example_batch(), options);
  CHECK(out.cache_seqlens.value == integers{5, 8, 1, 0});
  CHECK(out.cu_seqlens_q.value == integers{0, 2, 2, 5, 5});
  CHECK(out.expanded.value == integers{4, 5, 0, 0, 1, 0, 0, 0});
  CHECK(out.dsa_cache_seqlens.value == integers{4, 4, 0, 0, 1, 0, 0, 0});
  CHECK(out.dsa_cu_seqlens_k.value == integers{0, 4, 8, 8, 8, 9, 9, 9, 9});
  CHECK(out.row_of.value == integers{0, 0, 2, 2, 2, 0, 0, 0});
  CHECK(out.page_table_1.line == lines{{28, 29, 30, 31, 12}, {24, 25, 26, 27, 8, 9, 10, 11}, {32}, {}});
  CHECK(out.real_page_table.line == lines{{7, 3}, {6, 2}, {8}, {}});
  CHECK(out.paged_mqa_ctx_lens.line == lines{{5, 5}, {8, 8}, {1, 1}, {0, 0}});
  CHECK(out.pooled_table.line.empty());
}

TEST_CASE("reference: DSA metadata by hand, a line a token") {
  dsa_options options;
  options.topk = 4;
  options.token_table = true;
  options.line_per_token = true;
  const dsa_output out = dsa_metadata(example_batch(), options);
  // tokens 2 and 3 see nothing, yet their lines have their row's live columns
  CHECK(out.page_table_1.line ==
        lines{{28, 29, 30, 31, 12}, {28, 29, 30, 31, 12}, {32}, {32}, {32}, {}, {}, {}});
  CHECK(out.real_page_table.line == lines{{7, 3}, {7, 3}, {8}, {8}, {8}, {}, {}, {}});
}

TEST_CASE("reference: pooled keys by hand") {
  batch in = example_batch();
  in.max_context = 12;
  in.seq_lens[1] = 12;
  // q 0 has pages 4, 5, 6: two of them one group of the pool, the third the first of another; q 2 has none
  // mapped
  in.source.entry = [](std::int64_t q, std::int64_t t) -> std::int64_t {
    if (q == 2) return -1;
    return (4 + t / 4) * 4 + t % 4;
  };
  dsa_options options;
  options.topk = 2;
  options.kpool = 2;
  options.pooled_table.skip = -3;
  const dsa_output out = dsa_metadata(in, options);
  CHECK(out.pooled_len.value == integers{2, 6, 0, 0});
  // row 0: one page, missing; row 1: pages(6) = 2, real pages 0 and 2, that is 4 / 2 and 6 / 2
  CHECK(out.pooled_table.line == lines{{-3}, {2, 3}, {}, {}});
  CHECK(out.dsa_cache_seqlens.value == integers{2, 3, 0, 0, 1, 0, 0, 0});
}

TEST_CASE("reference: the static variant has one number of tokens") {
  const dsa_output out = dsa_metadata(with_equal_tokens(example_batch(), 2), {});
  CHECK(out.cu_seqlens_q.value == integers{0, 2, 4, 6, 6});
  CHECK(out.row_of.value == integers{0, 0, 1, 1, 2, 2, 0, 0});
  CHECK(out.expanded.value == integers{4, 5, 7, 8, 0, 1, 0, 0});
}

TEST_CASE("reference: compressed metadata by hand") {
  compressed_input in;
  in.ratio = 4;
  in.P = 8;  // 2 compressed entries a page
  in.page_columns = 3;
  in.T = 5;
  in.c = {0, 3, 4, 20, 8, 999};
  in.out_loc = {40, 41, 44, -1};  // fewer slots than tokens
  in.out_loc_skip = -9;
  in.page_table = [](std::int64_t t, std::int64_t p) -> std::int64_t {
    const std::int64_t pages[5][3] = {{0, 0, 0}, {1, 0, 0}, {5, 0, 0}, {6, -1, 3}, {7, 0, 0}};
    return pages[t][p];
  };
  in.page_indices.skip = -2;
  const compressed_output out = compressed_metadata(in);
  // only tokens 2, 3 and 4 complete a group; 3's slot is negative, 4 has none
  CHECK(out.out_loc.value == integers{-9, -9, 11, -9, -9, -9});
  CHECK(out.positions.value == integers{0, 0, 0, 16, 4, 0});
  CHECK(out.length.value == integers{0, 0, 1, 5, 2, 0});
  CHECK(out.length_clamped.value == integers{1, 1, 1, 5, 2, 0});
  // 5 * 2; 6 * 2 and the next, twice nothing, 3 * 2; 7 * 2 and the next
  CHECK(out.page_indices.line == lines{{}, {}, {10}, {12, 13, -2, -2, 6}, {14, 15}, {}});
  CHECK(out.page_indices.width == 6);
}

TEST_CASE("reference: C1, C2 and C128 by hand") {
  compressed_input in;
  in.P = 256;
  in.page_columns = 2;
  in.T = 2;
  in.c = {255, 384};
  in.out_loc = {1000, 1023};
  in.page_table = [](std::int64_t, std::int64_t p) { return p + 3; };
  in.ratio = 128;
  compressed_output out = compressed_metadata(in);
  CHECK(out.out_loc.value == integers{-1, 7});
  CHECK(out.positions.value == integers{128, 256});
  CHECK(out.length.value == integers{1, 3});
  CHECK(out.page_indices.line == lines{{6}, {6, 7, 8}});  // m = 2: pages 3 and 4
  in.capacity = 2;
  out = compressed_metadata(in);
  CHECK(out.page_indices.line == lines{{6}, {6, 7}});
  CHECK(has_fault(out.faults, fault_kind::capacity, 1));

  in.indices = false;
  in.ratio = 1;
  out = compressed_metadata(in);
  CHECK(out.out_loc.value == integers{1000, 1023});
  CHECK(out.positions.value == integers{254, 383});
  CHECK(out.length.value == integers{255, 384});
  in.ratio = 2;
  out = compressed_metadata(in);
  CHECK(out.out_loc.value == integers{-1, 511});
  CHECK(out.positions.value == integers{254, 382});
  CHECK(out.length.value == integers{127, 192});
}

}  // namespace
}  // namespace stepgraph::reference
