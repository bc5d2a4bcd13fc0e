#include "kernels/metadata/compressed_metadata.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "graphs/error.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/dsa_metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

struct level_outputs {
  level_outputs(stream_ref at, const reference::compressed_input& in, std::int64_t capacity)
      : out_loc(at, std::ssize(in.c)),
        positions(at, std::ssize(in.c)),
        length(at, std::ssize(in.c)),
        clamped(at, std::ssize(in.c)),
        indices(at, std::ssize(in.c), capacity, capacity % 3, in.page_indices) {}
  output_vector<std::int64_t> out_loc;
  output_vector<std::int32_t> positions, length, clamped;
  output_table indices;
};

/// All ratios in one launch, against one oracle call each. `by_row`: page tables have a line a row.
void compare(reference::batch in, std::vector<std::int64_t> ratios, bool by_row, reference::tail_rule tail,
             std::int64_t cut) {
  in.C = std::max<std::int64_t>(in.C, 1);
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const reference::derived d = reference::derive(in);
  const std::int64_t lines = by_row ? in.B : in.C, stride = in.page_columns + 1;
  const auto first = reference::compressed_from(in, ratios[0]);
  std::vector<std::int32_t> table(lines * stride, device_batch::wild);
  for (std::int64_t line = 0; line < (by_row ? d.n : d.T); ++line)
    for (std::int64_t x = 0; x < in.pages(d.len[by_row ? line : d.row_of[line]]); ++x) {
      std::vector<reference::fault> ignored;
      const auto page = reference::slot_reader(in, ignored).page(by_row ? line : d.row_of[line], x);
      table[line * stride + x] = static_cast<std::int32_t>(page.value_or(-1));
    }
  // lines outside the page table, and lines longer than it
  std::vector<std::int32_t> line = narrow(d.row_of);
  for (std::int64_t t = 0; cut > 1 && t < d.T; t += 3)
    line[t] = static_cast<std::int32_t>(t % 2 == 0 ? lines + t : -1 - t);
  const std::int64_t longest = d.len.empty() ? 0 : *std::ranges::max_element(d.len);
  const std::int64_t columns = cut > 1 ? std::max<std::int64_t>(1, in.pages(longest) - 1) : in.page_columns;
  const auto locs = std::max<std::int64_t>(0, std::ssize(first.out_loc) - cut);
  const device_vector<std::int32_t> live(at, {static_cast<std::int32_t>(d.T)}), c(at, narrow(d.c)),
      loc(at, narrow(first.out_loc)), pages(at, table), row_of(at, line);
  const fault_fixture faults(at, static_cast<int>(in.C));
  compressed_metadata_params p{.live_tokens = live.data(),
                               .tokens = static_cast<std::int32_t>(in.C),
                               .causal_length = c.data(),
                               .out_loc = loc.data(),
                               .out_locs = static_cast<std::int32_t>(locs),
                               .page_table = pages.data(),
                               .page_table_stride = stride,
                               .page_columns = columns,
                               .page_lines = static_cast<std::int32_t>(lines),
                               .row_of = by_row ? row_of.data() : nullptr,
                               .page_shift = std::countr_zero(static_cast<std::uint64_t>(in.P)),
                               .levels = static_cast<std::int32_t>(ratios.size()),
                               .faults = faults.sink()};
  std::vector<reference::compressed_input> inputs;
  std::vector<std::unique_ptr<level_outputs>> outputs;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    auto input = reference::compressed_from(in, ratios[i]);
    input.out_loc.resize(locs);
    input.page_indices = {static_cast<std::int64_t>(i % 2) - 1, tail};
    input.page_columns = columns;
    input.page_lines = lines;
    if (by_row) input.line.assign(line.begin(), line.end());
    input.out_loc_skip = -static_cast<std::int64_t>(i % 2);
    // a capacity that some tokens pass
    const std::int64_t all = input.indices ? in.P / ratios[i] * in.page_columns : 1;
    input.capacity = cut > 0 ? std::max<std::int64_t>(1, all - 2) : all;
    inputs.push_back(input);
    outputs.push_back(std::make_unique<level_outputs>(at, input, input.capacity));
    level_outputs& out = *outputs.back();
    p.level[i] = {.ratio_shift = std::countr_zero(static_cast<std::uint64_t>(ratios[i])),
                  .out_loc = out.out_loc.data(),
                  .out_loc_skip = static_cast<std::int32_t>(input.out_loc_skip),
                  .positions = out.positions.data(),
                  .length = out.length.data(),
                  .length_clamped = out.clamped.data()};
    if (input.indices) p.level[i].page_indices = out.indices.sink;
  }
  compressed_metadata(at, p);
  std::vector<reference::fault> reported;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    CAPTURE(ratios[i]);
    const auto want = reference::compressed_metadata(inputs[i]);
    outputs[i]->out_loc.expect(want.out_loc);
    outputs[i]->positions.expect(want.positions);
    outputs[i]->length.expect(want.length);
    outputs[i]->clamped.expect(want.length_clamped);
    outputs[i]->indices.expect(want.page_indices);
    for (const auto& f : want.faults) reference::add_fault(reported, f);
  }
  expect_faults(op_id::compressed_metadata, faults, reported);
}

}  // namespace

TEST_CASE("compressed metadata of several ratios in one launch equals the definitions") {
  for (int i = 0; i < test_rounds(40); ++i)
    compare(reference::random_batch(test_seed() + i,
                                    {.page_size = i % 2 ? 256 : 128, .page_map = i % 3 == 0, .poison = true}),
            {1, 2, 4, 128}, i % 2 == 0, some_tail(i), i % 5 < 3 ? i % 5 : 0);
}

TEST_CASE("C128 indices with one, two and eight entries a page") {
  for (const std::int64_t page : {128, 256, 1024})
    for (int i = 0; i < test_rounds(4); ++i)
      compare(reference::random_batch(test_seed() + 100 + i, {.page_size = page, .poison = true}), {128},
              i % 2 == 0, {}, 0);
}

TEST_CASE("ratios without indices need no page table") {
  // the page is smaller than the ratio: vectors alone
  for (int i = 0; i < test_rounds(6); ++i)
    compare(
        reference::random_batch(test_seed() + 200 + i, {.page_size = 4, .max_context = 900, .poison = true}),
        {16, 4}, true, {}, 0);
}

TEST_CASE("compressed metadata refuses by name what the host can see") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 64, 0);
  compressed_metadata_params p{.live_tokens = numbers.data(),
                               .tokens = 2,
                               .causal_length = numbers.data(),
                               .page_shift = 1,
                               .levels = 1};
  p.level[0] = {.ratio_shift = 2, .length = numbers.data() + 8};
  compressed_metadata(at, p);
  at.synchronize();
  p.level[0].page_indices = {.data = numbers.data(), .stride = 4, .columns = 4};
  CHECK_THROWS_WITH_AS(compressed_metadata(at, p), doctest::Contains("page_table is null"), invalid_argument);
  p.page_table = numbers.data();
  p.page_columns = p.page_table_stride = 4;
  p.page_lines = 2;
  CHECK_THROWS_WITH_AS(compressed_metadata(at, p), doctest::Contains("holds no entry"), invalid_argument);
  p.levels = 5;
  CHECK_THROWS_WITH_AS(compressed_metadata(at, p), doctest::Contains("levels must be in"), invalid_argument);
}

TEST_CASE("compressed metadata at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths())
    compare(reference::random_batch(test_seed() + width, {.rows = 3,
                                                          .max_tokens = 2,
                                                          .page_size = 128,
                                                          .max_context = width,
                                                          .length_limit = 5000,
                                                          .poison = true}),
            {4, 128}, true, {}, 0);
}
