#include <doctest/doctest.h>

#include "kernels/metadata/compressed_metadata.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"
#include "kernels/metadata/dsa_metadata.hpp"
#include "kernels/metadata/kv_indices.hpp"
#include "kernels/metadata/spec_page_table.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "tests/kernels/far_table.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

// wrap-32: every op with lines more than 2^31 entries from their table's begin. Line 2 of 3 is the only one
// that is live; where a 32-bit offset would land lies poison.

namespace {

constexpr std::int64_t stride = (std::int64_t{1} << 30) + 4;
constexpr std::int64_t far = 2 * stride;  // the live line, 2^31 + 8
constexpr std::int64_t wrapped = 8;       // far, in 32 bits
constexpr std::int32_t length = 1501, page = 4, pages = (length + page - 1) / page, rows = 3;
constexpr std::int64_t width = 2048;

std::vector<std::int32_t> counting(std::int32_t first, std::int64_t count) {
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<std::int32_t>(i));
  return values;
}

/// An output whose line 2 is far away.
class far_output {
 public:
  explicit far_output(stream_ref at) : table_(at, 3 * stride) { clear(); }
  std::int32_t* data() const { return table_.data(); }
  table_sink sink() const { return {.data = data(), .stride = stride, .columns = width}; }
  void expect(std::vector<std::int32_t> want) const {
    want.resize(width, output_poison);
    CHECK(table_.get(far, width) == want);
    CHECK(table_.get(wrapped, width) == std::vector<std::int32_t>(width, output_poison));
    clear();
  }

 private:
  void clear() const {
    const std::vector<std::int32_t> poison(width, output_poison);
    table_.set(far, poison);
    table_.set(wrapped, poison);
  }
  far_table table_;
};

/// A step whose row 2 alone has tokens, from line 2 of a source whose slots are 400, 401, ...
struct far_step {
  explicit far_step(stream_ref at)
      : table(at, 3 * stride),
        live(at, {rows}),
        seq_lens(at, {0, 0, length}),
        requests(at, {0, 1, 2}),
        counts(at, {0, 0, 1}) {
    // a draft step later the others have a token too
    table.set(0, {4});
    table.set(stride, {8});
    table.set(far, counting(400, length + 1));
    table.set(wrapped, std::vector<std::int32_t>(width, device_batch::wild));
    lengths = {.live_rows = live.data(), .rows = rows, .seq_lens = seq_lens.data(), .cap = width};
    source = {.table = table.data(), .row_stride = stride, .requests = rows, .columns = width};
    query = {counts.data(), false, 1, rows};
  }
  far_table table;
  device_vector<std::int32_t> live, seq_lens, requests, counts;
  row_lengths lengths;
  page_source source;
  query_tokens query;
};

std::vector<std::int32_t> first_of(const device_vector<std::int32_t>& of, std::int64_t count) {
  auto got = of.get();
  got.resize(count);
  return got;
}

}  // namespace

TEST_CASE("wrap-32: decode metadata with a sliding window, and draft steps") {
  const stream at(test_device());
  far_step step(at);
  step.source.page_shift = 2;
  const far_output table(at), window(at);
  const device_vector<std::int32_t> map(at, counting(1000, 2 * width));
  const output_vector<std::int32_t> lens(at, 2 * rows), cu_q(at, rows + 1);
  const output_vector<std::int32_t> loc(at, rows);
  decode_metadata_params p{.lengths = step.lengths,
                           .requests = step.requests.data(),
                           .source = step.source,
                           .cache_seqlens = lens.data(),
                           .page_table = table.data(),
                           .page_table_stride = stride,
                           .page_columns = width,
                           .window = {.page_map = {map.data(), 2 * width},
                                      .page_table = window.data(),
                                      .page_table_stride = stride,
                                      .out_cache_loc = loc.data()},
                           .query = step.query,
                           .cu_seqlens_q = cu_q.data()};
  draft_extend_metadata(at, p);
  table.expect(counting(100, pages));
  window.expect(counting(1100, pages));
  // the last token's slot is 400 + length - 1, in page 100 + (length - 1) / 4
  CHECK(loc.get()[0] == (1100 + (length - 1) / page) * page + (length - 1) % page);
  p.window.out_cache_loc = {};
  p.cu_seqlens_q = nullptr;
  draft_steps_metadata(at, {.decode = p,
                            .steps = 1,
                            .query = step.query,
                            .cache_seqlens = lens.data(),
                            .out_cache_loc = loc.data()});
  table.expect(counting(100, (length + page) / page));
  window.expect(counting(1100, (length + page) / page));
  CHECK(loc.get()[0] == 400 + length);
}

TEST_CASE("wrap-32: token inputs and KV indices") {
  const stream at(test_device());
  const far_step step(at);
  const output_vector<std::int32_t> cu(at, rows + 1), row_of(at, rows), loc(at, rows), indices(at, width);
  token_inputs(at, {.lengths = step.lengths,
                    .query_counts = step.counts.data(),
                    .max_query_count = 1,
                    .tokens = rows,
                    .requests = step.requests.data(),
                    .source = step.source,
                    .cu_seqlens_q = cu.data(),
                    .row_of = row_of.data(),
                    .out_cache_loc = loc.data()});
  CHECK(first_of(loc, 3) == std::vector<std::int32_t>{400 + length - 1, -1, -1});
  kv_indices(at, {.lengths = step.lengths,
                  .requests = step.requests.data(),
                  .source = step.source,
                  .indptr = cu.data(),
                  .indices = indices.data(),
                  .capacity = width});
  CHECK(first_of(indices, length) == counting(400, length));
  CHECK(first_of(cu, 4) == std::vector<std::int32_t>{0, 0, 0, length});
  // a CSR that begins past 2^31
  const device_vector<std::int64_t> indptr(at, {far, far, far, far + length});
  const device_vector<std::int32_t> extend(at, {9});
  unified_kv_indices(at, {.lengths = step.lengths,
                          .query = step.query,
                          .prefix_indptr = indptr.data(),
                          .prefix_indices = step.table.data(),
                          .prefix_count = far + length,
                          .extend_indices = extend.data(),
                          .extend_count = 1,
                          .indptr = cu.data(),
                          .indices = indices.data(),
                          .capacity = width});
  auto want = counting(400, length);
  want.push_back(9);
  CHECK(first_of(indices, length + 1) == want);
}

TEST_CASE("wrap-32: DSA page tables and pooled keys, a line a row and a line a token") {
  const stream at(test_device());
  far_step step(at);
  step.source.page_shift = 2;
  const device_vector<std::int32_t> every(at, {1, 1, 1});
  const far_output real(at), tokens(at);
  const output_vector<std::int32_t> lens(at, rows), cu_q(at, rows + 1), sparse(at, rows),
      pooled_len(at, rows);
  for (const bool line_per_token : {false, true}) {
    CAPTURE(line_per_token);
    dsa_metadata_params p{.lengths = step.lengths,
                          .requests = step.requests.data(),
                          .source = step.source,
                          .query = {every.data(), false, 1, rows},
                          .topk = 8,
                          .line_per_token = line_per_token,
                          .cache_seqlens = lens.data(),
                          .cu_seqlens_q = cu_q.data(),
                          .dsa_cache_seqlens = sparse.data(),
                          .page_table_1 = tokens.sink(),
                          .real_page_table = real.sink()};
    dsa_metadata(at, p);
    tokens.expect(counting(400, length));
    real.expect(counting(100, pages));
    p.kpool = 2;
    p.pooled_len = pooled_len.data();
    p.page_table_1 = {};
    p.pooled_table = tokens.sink();
    dsa_metadata(at, p);
    real.expect(counting(100, pages));
    tokens.expect(counting(50, (length / 2 + page - 1) / page));
  }
}

TEST_CASE("wrap-32: compressed attention and spec page tables") {
  const stream at(test_device());
  const far_step step(at);
  const far_output indices(at), joined(at);
  const device_vector<std::int32_t> causal(at, {0, 0, 1200}), row_of(at, {0, 1, 2}), none(at, {0, 0, 0});
  const output_vector<std::int32_t> compressed_len(at, rows), total(at, rows);
  compressed_metadata_params p{.live_tokens = step.live.data(),
                               .tokens = rows,
                               .causal_length = causal.data(),
                               .page_table = step.table.data(),
                               .page_table_stride = stride,
                               .page_columns = width,
                               .page_lines = rows,
                               .page_shift = 2,
                               .levels = 1};
  p.level[0] = {.ratio_shift = 2, .length = compressed_len.data(), .page_indices = indices.sink()};
  for (const bool by_row : {false, true}) {
    p.row_of = by_row ? row_of.data() : nullptr;
    compressed_metadata(at, p);
    indices.expect(counting(400, 300));
  }
  // rows' entries and tokens' own from the same far lines
  const page_table_view all{step.table.data(), stride, rows, width, step.seq_lens.data()};
  page_table_view some = all;
  const device_vector<std::int32_t> few(at, {0, 0, 7});
  some.length = few.data();
  spec_page_table(at, {.live_tokens = step.live.data(),
                       .tokens = rows,
                       .row_of = row_of.data(),
                       .by_row = all,
                       .by_token = some,
                       .table = joined.sink(),
                       .total = total.data()});
  auto want = counting(400, length);
  for (const std::int32_t entry : counting(400, 7)) want.push_back(entry);
  joined.expect(want);
}
