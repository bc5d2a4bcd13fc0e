#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/kernel_registry.hpp"
#include "kernels/metadata/compressed_metadata.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"
#include "kernels/metadata/dsa_metadata.hpp"
#include "kernels/metadata/kv_indices.hpp"
#include "kernels/metadata/kv_split_plan.hpp"
#include "kernels/metadata/spec_page_table.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// Every metadata op once, at one shape of everything that is a run-time number.
void run_every_op(const reference::batch& in, int i) {
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  const std::int64_t width = in.page_columns, tokens = std::max<std::int64_t>(in.C, 1);
  const auto rows = static_cast<std::int32_t>(in.B), most = static_cast<std::int32_t>(tokens);
  const std::int64_t vectors = 8 * (rows + tokens + 8);
  const output_vector<std::int32_t> a(at, vectors), b(at, vectors), c(at, vectors), d(at, vectors),
      e(at, vectors), indices(at, rows * in.cap() + tokens + 1);
  const output_table table(at, std::max<std::int64_t>(rows, tokens), in.cap() + 1, i % 3),
      other(at, std::max<std::int64_t>(rows, tokens), in.cap() + 1, i % 4);
  query_tokens query = device_query(in, batch);
  query.tokens = most;
  decode_metadata_params decode{.lengths = batch.lengths,
                                .requests = batch.requests(),
                                .source = batch.source,
                                .cache_seqlens = a.data(),
                                .cu_seqlens_k = b.data(),
                                .page_table = table.data(),
                                .page_table_stride = table.sink.stride,
                                .page_columns = width,
                                .query = query};
  decode_metadata(at, decode);
  decode.tail = {static_cast<tail_mode>(i % 3), 4, -1};
  decode.cu_seqlens_q = c.data();
  draft_extend_metadata(at, decode);
  query_tokens one = query;
  one.max_count = 1;
  draft_steps_metadata(at, {.decode = decode,
                            .steps = 1 + i % 4,
                            .query = one,
                            .cache_seqlens = a.data(),
                            .out_cache_loc = indices.data()});
  token_inputs(at, {.lengths = batch.lengths,
                    .query_counts = batch.query_counts(),
                    .max_query_count = static_cast<std::int32_t>(in.Emax),
                    .tokens = most,
                    .requests = batch.requests(),
                    .source = batch.source,
                    .cu_seqlens_q = a.data(),
                    .row_of = b.data(),
                    .causal_length = c.data()});
  compressed_metadata_params compressed{.live_tokens = a.data() + rows,
                                        .tokens = most,
                                        .causal_length = c.data(),
                                        .page_table = table.data(),
                                        .page_table_stride = table.sink.stride,
                                        .page_columns = width,
                                        .page_lines = rows,
                                        .row_of = b.data(),
                                        .page_shift = 7,
                                        .levels = 1 + i % 2};
  for (int level = 0; level < compressed.levels; ++level)
    compressed.level[level] = {.ratio_shift = level == 0 ? 7 : 2, .length = d.data()};
  compressed.level[0].page_indices = other.sink;
  compressed_metadata(at, compressed);
  spec_page_table(at, {.live_tokens = a.data() + rows,
                       .tokens = most,
                       .row_of = b.data(),
                       .by_row = {table.data(), table.sink.stride, rows, width, batch.query_counts()},
                       .by_token = {table.data(), table.sink.stride, most, width, c.data()},
                       .table = other.sink,
                       .total = e.data()});
  for (const bool line_per_token : {false, true})
    dsa_metadata(at, {.lengths = batch.lengths,
                      .requests = batch.requests(),
                      .source = batch.source,
                      .query = query,
                      .topk = 1 + i * 7,
                      .kpool = 1 << i % 3,
                      .line_per_token = line_per_token,
                      .cache_seqlens = c.data(),
                      .cu_seqlens_q = d.data(),
                      .dsa_cache_seqlens = e.data(),
                      .page_table_1 = i % 2 ? table.sink : table_sink{},
                      .real_page_table = other.sink});
  kv_indices(at, {.lengths = batch.lengths,
                  .requests = batch.requests(),
                  .source = batch.source,
                  .indptr = c.data(),
                  .indices = indices.data(),
                  .capacity = rows * in.cap() + 1});
  const device_vector<std::int64_t> prefix(at, std::vector<std::int64_t>(rows + 1, i % 2));
  unified_kv_indices(at, {.lengths = batch.lengths,
                          .query = query,
                          .prefix_indptr = prefix.data(),
                          .prefix_indices = a.data(),
                          .prefix_count = 1,
                          .extend_indices = b.data(),
                          .extend_count = tokens,
                          .indptr = c.data(),
                          .indices = indices.data(),
                          .capacity = tokens});
  kv_split_plan(at, {.lengths = batch.lengths,
                     .tile = 1 + i,
                     .max_splits = 4 + i,
                     .workers = 132 - i,
                     .capacity = rows * (4 + i),
                     .chunks = reinterpret_cast<kv_split_chunk*>(indices.data()),
                     .cu_chunks = c.data()});
  at.synchronize();
}

}  // namespace

TEST_CASE("one kernel serves an op at every width, batch, length, stride and top-k") {
  int i = 0;
  for (const std::int64_t width : {1, 64, 1000, 5000, 70000})
    for (const std::int64_t rows : {1, 7, 70}) {
      if (width * rows > 400000) continue;
      run_every_op(
          reference::random_batch(
              test_seed() + width + rows,
              {.rows = rows, .max_tokens = 1 + i % 3, .page_size = 1 << i % 2, .max_context = width}),
          i);
      ++i;
    }
  // the plain form and the one with everything
  CHECK(kernels_launched("decode_metadata") == 2);
  for (const char* op : {"token_inputs", "draft_steps_metadata", "dsa_metadata", "compressed_metadata",
                         "spec_page_table", "kv_indices", "unified_kv_indices", "kv_split_plan"}) {
    CAPTURE(op);
    CHECK(kernels_launched(op) == 1);
  }
}
