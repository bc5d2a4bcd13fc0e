#include <doctest/doctest.h>

#include "graphs/graph.hpp"
#include "kernels/kernel_registry.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/metadata/dsa_metadata.hpp"
#include "tests/kernels/far_table.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

std::vector<std::int32_t> counting(std::int32_t first, std::int64_t count) {
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<std::int32_t>(i));
  return values;
}

/// Row `row` of a table of `rows` lines `stride` entries apart, alone live with `length` tokens, read from
/// the last line of a source of the same shape.
void far_row(std::int64_t rows, std::int64_t stride, std::int64_t width, std::int32_t length) {
  CAPTURE(stride);
  const stream at(test_device());
  const far_table source(at, rows * stride), table(at, rows * stride);
  const std::int64_t row = rows - 1, first = row * stride;
  source.set(first, counting(100, length));
  const std::vector<std::int32_t> poison(length + 8, output_poison);
  table.set(first, poison);
  // where a 32-bit product would land
  const auto wrapped = static_cast<std::int64_t>(static_cast<std::uint32_t>(first)) & ~std::int64_t{3};
  if (wrapped + length + 8 <= first) table.set(wrapped, poison);
  std::vector<std::int32_t> lengths(rows, 0), q(rows, 0);
  lengths[row] = length;
  q[row] = static_cast<std::int32_t>(row);
  const device_vector<std::int32_t> live(at, {static_cast<std::int32_t>(rows)}), seq_lens(at, lengths),
      requests(at, q), counts(at, rows, 1);
  const output_vector<std::int32_t> lens(at, rows), cu_q(at, rows + 1), sparse(at, rows);
  const row_lengths step{.live_rows = live.data(),
                         .rows = static_cast<std::int32_t>(rows),
                         .seq_lens = seq_lens.data(),
                         .cap = width};
  const page_source pages{.table = source.data(),
                          .row_stride = stride,
                          .requests = static_cast<std::int32_t>(rows),
                          .columns = width};
  const auto check = [&] {
    auto want = counting(100, length);
    want.insert(want.end(), 8, output_poison);
    CHECK(table.get(first, length + 8) == want);
    if (wrapped + length + 8 <= first) CHECK(table.get(wrapped, length + 8) == poison);
    table.set(first, poison);
  };
  decode_metadata(at, {.lengths = step,
                       .requests = requests.data(),
                       .source = pages,
                       .cache_seqlens = lens.data(),
                       .page_table = table.data(),
                       .page_table_stride = stride,
                       .page_columns = width});
  check();
  const query_tokens query{counts.data(), false, 1, static_cast<std::int32_t>(rows)};
  for (const bool line_per_token : {false, true}) {
    dsa_metadata(at, {.lengths = step,
                      .requests = requests.data(),
                      .source = pages,
                      .query = query,
                      .topk = 8,
                      .line_per_token = line_per_token,
                      .cache_seqlens = lens.data(),
                      .cu_seqlens_q = cu_q.data(),
                      .dsa_cache_seqlens = sparse.data(),
                      .page_table_1 = {.data = table.data(), .stride = stride, .columns = width}});
    check();
  }
}

}  // namespace

TEST_CASE("wrap-32: rows whose offset passes 2^31 entries") {
  far_row(3, (std::int64_t{1} << 30) + 4, 6000, 5001);
  far_row(3, (std::int64_t{1} << 30) - 3, 6000, 5001);
  far_row(2149, 1000000, 1000000, 1234);
}

TEST_CASE("one kernel serves decode metadata at every width, batch, length and stride") {
  for (const std::int64_t width : {1, 64, 1000, 5000, 70000})
    for (const std::int64_t rows : {1, 7, 70}) {
      if (width * rows > 400000) continue;
      const auto in = reference::random_batch(test_seed() + width + rows,
                                              {.rows = rows, .page_size = 1, .max_context = width});
      const stream at(test_device());
      const device_batch batch(at, in);
      const output_vector<std::int32_t> lens(at, in.B);
      const output_table table(at, in.B, in.page_columns, width % 3);
      decode_metadata(at, {.lengths = batch.lengths,
                           .requests = batch.requests(),
                           .source = batch.source,
                           .cache_seqlens = lens.data(),
                           .page_table = table.data(),
                           .page_table_stride = table.sink.stride,
                           .page_columns = in.page_columns});
      table.expect(reference::decode_metadata(in).page_table);
    }
  // the plain form and the one with everything, whichever of them this process has launched
  CHECK(kernels_launched("decode_metadata") >= 1);
  CHECK(kernels_launched("decode_metadata") <= 2);
  for (const char* op : {"token_inputs", "draft_steps_metadata", "dsa_metadata", "compressed_metadata",
                         "spec_page_table", "kv_indices", "unified_kv_indices", "kv_split_plan"}) {
    CAPTURE(op);
    CHECK(kernels_launched(op) <= 1);
  }
}

TEST_CASE("wide tables on a GPU: 1,048,576 columns") {
  if (test_device().is_host() || test_small()) return;  // the definitions take minutes there
  for (const std::int64_t page : {1, 64}) {
    const auto in = reference::random_batch(
        test_seed() + page, {.rows = 3, .page_size = page, .max_context = 1 << 20, .poison = true});
    const stream at(test_device());
    const device_batch batch(at, in);
    const output_vector<std::int32_t> lens(at, in.B), cu(at, in.B + 1);
    const output_table table(at, in.B, in.page_columns, 1);
    decode_metadata(at, {.lengths = batch.lengths,
                         .requests = batch.requests(),
                         .source = batch.source,
                         .cache_seqlens = lens.data(),
                         .cu_seqlens_k = cu.data(),
                         .page_table = table.data(),
                         .page_table_stride = table.sink.stride,
                         .page_columns = in.page_columns,
                         .faults = batch.faults});
    const auto want = reference::decode_metadata(in);
    lens.expect(want.cache_seqlens);
    cu.expect(want.cu_seqlens_k);
    table.expect(want.page_table);
  }
}
