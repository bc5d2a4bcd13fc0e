#include <doctest/doctest.h>

#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"
#include "tests/kernels/far_table.hpp"
#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

std::vector<std::int32_t> counting(std::int32_t first, std::int64_t count) {
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<std::int32_t>(i));
  return values;
}

}  // namespace

TEST_CASE("sparse: wrap-32: pages and lines whose offset passes 2^31") {
  const stream at(test_device());
  constexpr std::int64_t stride = (std::int64_t{1} << 30) + 16;  // bytes between pages
  const far_table buffer(at, 3 * stride / 4);
  const device_vector<std::int32_t> one(at, {1}), page(at, {2}), len(at, {70}), zeros(at, {0, 0});
  const index_k_cache cache{.data = reinterpret_cast<std::uint8_t*>(buffer.data()),
                            .pages = 3,
                            .page_stride = stride,
                            .page_shift = 7};
  const auto words = counting(1000, 128 * 33);  // 128 keys of 32 words, then their scales
  buffer.set(2 * stride / 4, words);
  const device_vector<std::int32_t> keys(at, 70 * 32 + 8, output_poison), scales(at, 70 + 4, output_poison);
  get_k_and_s(at, {.lengths = {.live_rows = one.data(), .rows = 1, .seq_lens = len.data(), .cap = 128},
                   .page_table = page.data(),
                   .page_table_stride = 1,
                   .page_columns = 1,
                   .cache = cache,
                   .keys = reinterpret_cast<std::uint8_t*>(keys.data()),
                   .scales = reinterpret_cast<std::uint32_t*>(scales.data()),
                   .capacity = 70});
  auto want = counting(1000, 70 * 32);
  want.resize(70 * 32 + 8, output_poison);
  CHECK(keys.get() == want);
  want = counting(1000 + 128 * 32, 70);
  want.resize(74, output_poison);
  CHECK(scales.get() == want);

  const device_vector<std::int64_t> loc(at, {2 * 128 + 100});
  set_k_and_s(at, {.live_tokens = one.data(),
                   .tokens = 1,
                   .loc = loc.data(),
                   .keys = reinterpret_cast<const std::uint8_t*>(keys.data()),
                   .scales = reinterpret_cast<const float*>(scales.data()),
                   .cache = cache});
  CHECK(buffer.get(2 * stride / 4 + 100 * 32, 32) == counting(1000, 32));
  CHECK(buffer.get(2 * stride / 4 + 99 * 32, 32) == counting(1000 + 99 * 32, 32));
  CHECK(buffer.get(2 * stride / 4 + 128 * 32 + 100, 1) == counting(1000 + 128 * 32, 1));
}

TEST_CASE("sparse: wrap-32: top-k and combined lines whose offset passes 2^31 entries") {
  const stream at(test_device());
  for (const std::int64_t stride : {(std::int64_t{1} << 30) + 4, (std::int64_t{1} << 30) - 3}) {
    CAPTURE(stride);
    const far_table table(at, 3 * stride), out(at, 3 * stride);
    table.set(2 * stride, counting(500, 700));
    const std::vector<std::int32_t> poison(140, output_poison);
    out.set(2 * stride, poison);
    const device_vector<std::int32_t> three(at, {3}), rows(at, {2, 2, 2}), indices(at, counting(0, 3 * 130));
    top_k_to_slots(at, {.live_tokens = three.data(),
                        .tokens = 3,
                        .row_of = rows.data(),
                        .indices = indices.data(),
                        .index_stride = 130,
                        .index_columns = 130,
                        .topk = 130,
                        .table = table.data(),
                        .table_stride = stride,
                        .table_lines = 3,
                        .table_columns = 700,
                        .slots = {.data = out.data(), .stride = stride, .columns = 130}});
    auto want = counting(500 + 260, 130);
    want.resize(140, output_poison);
    CHECK(out.get(2 * stride, 140) == want);

    // the same far lines as top-k indices of a combine, and as its output
    table.set(0, counting(0, 120));
    table.set(stride, counting(0, 120));
    out.set(2 * stride, poison);
    const device_vector<std::int32_t> one(at, {1}), start(at, {0, 3}), len(at, {4000}), zero(at, {0}),
        length(at, 3, 0);
    combine_top_k_and_window(
        at, {.lengths = {.live_rows = one.data(), .rows = 1, .seq_lens = len.data(), .cap = 4000},
             .query_start_loc = start.data(),
             .tokens = 3,
             .topk_indices = table.data(),
             .topk_stride = stride,
             .topk_columns = 120,
             .topk = 120,
             .window = 8,
             .gather_len = len.data(),
             .compressed_base = zero.data(),
             .swa_base = zero.data(),
             .indices = {.data = out.data(), .stride = stride, .columns = 128},
             .length = length.data()});
    want = counting(500, 120);
    for (int i = 0; i < 8; ++i) want.push_back(4000 - 8 + i);
    want.resize(140, output_poison);
    CHECK(out.get(2 * stride, 140) == want);
  }
}
