#include "kernels/metadata/dsa_metadata.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/dsa_metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

struct variant {
  bool line_per_token = false;
  bool token_table = false;
  std::int64_t kpool = 1;
  bool uniform = false;
  reference::tail_rule tail{};
};

void compare(reference::batch in, const variant& v) {
  in.C = std::max<std::int64_t>(in.C, 1);
  if (v.uniform) {
    in = reference::with_equal_tokens(in, in.Emax);
    in.C = std::max<std::int64_t>(reference::derive(in).T + 1, 1);
  }
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  reference::dsa_options options;
  options.topk = 1 + static_cast<std::int64_t>(in.seed % 40);
  options.kpool = v.kpool;
  options.line_per_token = v.line_per_token;
  options.token_table = v.token_table;
  options.mqa_tokens = 3;
  options.page_table_1 = {-1, v.tail};
  options.real_page_table = {0, v.tail};
  options.pooled_table = {-1, v.tail};
  const auto pages = reference::random_page_map(in.pool_pages, in.seed + 4);
  const device_map page_map(at, in.page_map ? *in.page_map : pages, true);
  const std::int64_t lines = v.line_per_token ? in.C : in.B;
  const output_vector<std::int32_t> lens(at, in.B), cu_q(at, in.B + 1), row_of(at, in.C), expanded(at, in.C),
      sparse(at, in.C), pooled_len(at, in.B);
  const output_vector<std::int64_t> cu_k(at, in.B + 1), sparse_cu(at, in.C + 1);
  const output_table tokens(at, lines, in.cap(), in.seed % 3, options.page_table_1),
      real(at, lines, in.page_columns, in.seed % 4, options.real_page_table),
      pooled(at, in.B, in.page_columns, 0, options.pooled_table), mqa(at, in.B, 3, 0);
  dsa_metadata_params p{.lengths = batch.lengths,
                        .requests = batch.requests(),
                        .source = batch.source,
                        .query = device_query(in, batch),
                        .topk = static_cast<std::int32_t>(options.topk),
                        .kpool = static_cast<std::int32_t>(v.kpool),
                        .line_per_token = v.line_per_token,
                        .cache_seqlens = lens.data(),
                        .cu_seqlens_k = cu_k.data(),
                        .cu_seqlens_q = cu_q.data(),
                        .row_of = row_of.data(),
                        .expanded = expanded.data(),
                        .dsa_cache_seqlens = sparse.data(),
                        .dsa_cu_seqlens_k = sparse_cu.data(),
                        .paged_mqa_ctx_lens = mqa.data(),
                        .mqa_tokens = 3,
                        .real_page_table = real.sink,
                        .faults = batch.faults};
  p.query.uniform = v.uniform;
  if (in.page_map) p.page_map = page_map.view;
  if (v.token_table) p.page_table_1 = tokens.sink;
  if (v.kpool > 1) {
    p.pooled_len = pooled_len.data();
    p.pooled_table = pooled.sink;
  }
  dsa_metadata(at, p);
  const auto want = reference::dsa_metadata(in, options);
  lens.expect(want.cache_seqlens);
  cu_k.expect(want.cu_seqlens_k);
  cu_q.expect(want.cu_seqlens_q);
  row_of.expect(want.row_of);
  expanded.expect(want.expanded);
  sparse.expect(want.dsa_cache_seqlens);
  sparse_cu.expect(want.dsa_cu_seqlens_k);
  tokens.expect(want.page_table_1);
  real.expect(want.real_page_table);
  mqa.expect(want.paged_mqa_ctx_lens);
  pooled_len.expect(want.pooled_len);
  pooled.expect(want.pooled_table);
  expect_faults(op_id::dsa_metadata, batch.reports, want.faults);
}

}  // namespace

TEST_CASE("DSA metadata of ragged batches equals the definitions, a line a row or a line a token") {
  for (int i = 0; i < test_rounds(48); ++i)
    compare(reference::random_batch(test_seed() + i,
                                    {.page_granular = i % 2 == 0, .page_map = i % 5 == 0, .poison = true}),
            {.line_per_token = i % 4 < 2, .token_table = i % 3 != 0});
}

TEST_CASE("DSA metadata with pooled keys, and with each tail, equals the definitions") {
  for (int i = 0; i < test_rounds(48); ++i) {
    const std::int64_t kpool = std::int64_t{1} << (i % 4);
    compare(reference::random_batch(test_seed() + 100 + i,
                                    {.page_group = kpool, .page_granular = i % 2 == 1, .poison = true}),
            {.line_per_token = i % 2 == 0, .token_table = i % 3 == 0, .kpool = kpool, .tail = some_tail(i)});
  }
}

TEST_CASE("DSA metadata with one E for all rows reads one number") {
  for (int i = 0; i < test_rounds(20); ++i)
    compare(reference::random_batch(test_seed() + 200 + i, {.equal_tokens = true, .poison = true}),
            {.line_per_token = i % 2 == 0, .token_table = true, .uniform = true});
}

TEST_CASE("DSA metadata clamps and reports what cannot be") {
  for (int i = 0; i < test_rounds(20); ++i)
    compare(reference::random_batch(test_seed() + 300 + i, {.poison = true,
                                                            .bad_request = i % 4 == 0,
                                                            .bad_length = i % 4 == 1,
                                                            .bad_tokens = i % 4 == 2,
                                                            .drop_tokens = i % 4 == 3}),
            {.line_per_token = i % 2 == 0, .token_table = i % 3 == 0});
  for (int i = 0; i < test_rounds(10); ++i)
    compare(reference::random_batch(test_seed() + 330 + i, {.page_granular = i % 2 == 0,
                                                            .page_map = i % 3 == 0,
                                                            .poison = true,
                                                            .bad_request = true,
                                                            .bad_length = true,
                                                            .bad_tokens = true,
                                                            .bad_slot = true}),
            {.line_per_token = i % 4 < 2, .token_table = i % 5 < 3});
}

TEST_CASE("DSA metadata puts skip where a table's entry is negative or past the pool") {
  for (int i = 0; i < test_rounds(20); ++i)
    compare(
        reference::random_batch(
            test_seed() + 350 + i,
            {.page_size = 1 << i % 7, .page_granular = i % 5 == 2, .page_map = i % 4 == 3, .bad_slot = true}),
        {.line_per_token = i % 2 == 0,
         .token_table = i % 3 != 0,
         .kpool = 1 << i % 2,
         .tail = some_tail(i % 5)});
}

TEST_CASE("DSA metadata of more rows and tokens than a block has threads") {
  compare(reference::random_batch(test_seed() + 400,
                                  {.rows = 300, .max_tokens = 3, .page_size = 2, .max_context = 60}),
          {.line_per_token = true, .token_table = true});
  compare(reference::random_batch(test_seed() + 401,
                                  {.rows = 5, .max_tokens = 4, .page_size = 1, .max_context = 20000}),
          {.line_per_token = true, .token_table = true});
}

TEST_CASE("DSA metadata refuses by name what the host can see") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 64, 0);
  dsa_metadata_params p{
      .lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 16},
      .requests = numbers.data(),
      .source = {.table = numbers.data(), .row_stride = 16, .requests = 2, .columns = 16},
      .query = {numbers.data(), false, 1, 2},
      .topk = 8,
      .cache_seqlens = numbers.data() + 8,
      .cu_seqlens_q = numbers.data() + 16,
      .dsa_cache_seqlens = numbers.data() + 24};
  SUBCASE("no topk") {
    p.topk = 0;
    CHECK_THROWS_WITH_AS(dsa_metadata(at, p), doctest::Contains("topk must be positive"), invalid_argument);
  }
  SUBCASE("an odd kpool") {
    p.kpool = 3;
    CHECK_THROWS_WITH_AS(dsa_metadata(at, p), doctest::Contains("kpool must be a power of two"),
                         invalid_argument);
  }
  SUBCASE("a narrow table") {
    p.page_table_1 = {.data = numbers.data(), .stride = 15, .columns = 15};
    CHECK_THROWS_WITH_AS(dsa_metadata(at, p), doctest::Contains("page_table_1 has 15 columns"),
                         invalid_argument);
  }
}

TEST_CASE("DSA metadata at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths())
    compare(reference::random_batch(test_seed() + width, {.rows = 3,
                                                          .max_tokens = 2,
                                                          .page_size = 1,
                                                          .max_context = width,
                                                          .length_limit = 5000,
                                                          .poison = true}),
            {.line_per_token = width % 2 == 0, .token_table = true});
}
