#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"
#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

enum class line_rule { of_row, own, expanded };  // row_of; decode, a row a token; a line a token by row_of

struct top_k_options {
  std::int64_t topk = 64;
  std::vector<std::int64_t> counts{};  // query tokens of each row
  line_rule rule = line_rule::of_row;
  std::int64_t width = 300;  // of the table
  bool bad_index = false;
  bool bad_line = false;
  bool all_missing = false;  // every index -1
  bool slots_alone = false;  // and these lie to 16 bytes as the indices do: the shortest kernels
  reference::tail_rule tail{};
};

void compare(std::uint64_t seed, const top_k_options& options) {
  CAPTURE(seed);
  CAPTURE(options.topk);
  const stream at(test_device());
  reference::random_integers random(seed);
  std::vector<std::int32_t> row_of;
  for (std::size_t r = 0; r < options.counts.size(); ++r)
    row_of.insert(row_of.end(), options.counts[r], static_cast<std::int32_t>(r));
  const auto live = static_cast<std::int64_t>(row_of.size());
  const std::int64_t tokens = std::max<std::int64_t>(1, live + random.below(4));
  while (static_cast<std::int64_t>(row_of.size()) < tokens)
    row_of.push_back(static_cast<std::int32_t>(wild_index(random)));
  const auto rows = static_cast<std::int64_t>(options.counts.size());
  const std::int64_t lines = options.rule == line_rule::of_row ? rows : tokens;
  if (options.rule == line_rule::expanded)
    for (std::int64_t t = 0; t < live; ++t) row_of[t] = static_cast<std::int32_t>(t);
  for (std::int64_t t = 0; options.bad_line && t < live; ++t)
    if (random.one_in(3))
      row_of[t] =
          static_cast<std::int32_t>(random.one_in(2) ? lines + random.below(3) : -1 - random.below(3));

  const std::int64_t columns = options.topk + random.below(3), stride = columns + random.below(3);
  std::vector<std::int32_t> indices(static_cast<std::size_t>(tokens * stride));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const bool none = options.all_missing || random.one_in(6);
    for (std::int64_t i = 0; i < stride; ++i)
      indices[t * stride + i] = static_cast<std::int32_t>(
          t >= live || i >= options.topk                     ? wild_index(random)
          : none || random.one_in(5)                         ? -1 - (random.one_in(9) ? 5 : 0)
          : options.bad_index && random.one_in(options.topk) ? options.width + random.below(3)
                                                             : random.below(options.width));
  }
  const std::int64_t table_stride = options.width + random.below(3);
  std::vector<std::int32_t> table(static_cast<std::size_t>(lines * table_stride));
  for (std::int64_t e = 0; e < lines * table_stride; ++e)
    table[e] = static_cast<std::int32_t>(e % table_stride >= options.width ? wild_index(random)
                                         : random.one_in(9)                ? -2
                                                                           : random.below(1 << 20));

  const device_vector<std::int32_t> live_tokens(at, {static_cast<std::int32_t>(live)}),
      device_rows(at, row_of), device_indices(at, indices), device_table(at, table);
  const output_table slots(at, tokens, columns, options.slots_alone ? stride - columns : seed % 3,
                           {-1, options.tail});
  const output_vector<std::int32_t> count(at, tokens), last(at, tokens);
  const fault_fixture faults(at, static_cast<int>(tokens));
  top_k_to_slots_params p{.live_tokens = live_tokens.data(),
                          .tokens = static_cast<std::int32_t>(tokens),
                          .row_of = options.rule == line_rule::own ? nullptr : device_rows.data(),
                          .indices = device_indices.data(),
                          .index_stride = stride,
                          .index_columns = columns,
                          .topk = static_cast<std::int32_t>(options.topk),
                          .table = device_table.data(),
                          .table_stride = table_stride,
                          .table_lines = static_cast<std::int32_t>(lines),
                          .table_columns = options.width,
                          .slots = slots.sink,
                          .faults = faults.sink()};
  if (seed % 4 != 1 && !options.slots_alone) p.count = count.data();
  if (seed % 4 != 2 && !options.slots_alone) p.last_plus_one = last.data();
  top_k_to_slots(at, p);

  reference::top_k_to_slots_input in;
  in.T = live;
  in.row_of.assign(row_of.begin(), row_of.end());
  in.topk = options.topk;
  in.index = [&](std::int64_t t, std::int64_t i) { return std::int64_t{indices[t * stride + i]}; };
  in.table = {lines, options.width, [&](std::int64_t line, std::int64_t x) {
                return std::int64_t{table[line * table_stride + x]};
              }};
  in.expanded = options.rule == line_rule::own;
  auto want = reference::top_k_to_slots(in);
  // the tail, which the oracle leaves out
  want.slots.width = columns;
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto& line = want.slots.line[t];
    if (options.tail.mode == reference::tail_mode::whole) line.resize(columns, options.tail.value);
    while (options.tail.mode == reference::tail_mode::multiple && t < live &&
           static_cast<std::int64_t>(line.size()) % options.tail.multiple != 0 &&
           static_cast<std::int64_t>(line.size()) < columns)
      line.push_back(options.tail.value);
  }
  slots.expect(want.slots);
  if (p.count) count.expect(want.count);
  if (p.last_plus_one) last.expect(want.last_plus_one);
  expect_faults(op_id::top_k_to_slots, faults, want.faults);
}

/// Query tokens of `rows` rows, none among them.
std::vector<std::int64_t> ragged(reference::random_integers& random, std::int64_t rows, std::int64_t most) {
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < rows; ++r) counts.push_back(random.between(0, most));
  return counts;
}

}  // namespace

TEST_CASE("sparse: top-k to slots equals the definitions at every top-k and query length") {
  reference::random_integers random(test_seed() + 1);
  int i = 0;
  for (const std::int64_t topk : {1, 5, 63, 64, 65, 512, 2048, 2049, 2051, 5000})
    for (const std::int64_t query : {0, 1, 2, 4, -1}) {
      if (test_small() && (topk * 7 + query) % 5 != 0) continue;
      const std::vector<std::int64_t> counts =
          query < 0 ? ragged(random, 5, 6) : std::vector<std::int64_t>(1 + i % 4, query);
      compare(test_seed() + i, {.topk = topk, .counts = counts, .rule = line_rule(i % 3)});
      ++i;
    }
}

TEST_CASE("sparse: top-k to slots alone, of tokens that are moved in parts") {
  reference::random_integers random(test_seed() + 2);
  int i = 0;
  for (const std::int64_t topk : {1, 3, 64, 1151, 1152, 1153, 2048, 2049, 2051, 4607, 5000, 9001}) {
    if (test_small() && topk % 3 != 0) continue;
    for (const line_rule rule : {line_rule::own, line_rule::of_row})
      for (const bool bad : {false, true})
        compare(test_seed() + 600 + i++, {.topk = topk,
                                          .counts = ragged(random, 4, 3),
                                          .rule = rule,
                                          .bad_index = bad,
                                          .slots_alone = true});
  }
  // more parts than a grid has blocks
  compare(test_seed() + 600 + i, {.topk = 5000,
                                  .counts = std::vector<std::int64_t>(test_small() ? 10 : 300, 1),
                                  .rule = line_rule::own,
                                  .slots_alone = true});
}

TEST_CASE("sparse: top-k to slots of dead, empty and wholly missing rows") {
  for (int i = 0; i < test_rounds(20); ++i) {
    compare(test_seed() + 100 + i, {.topk = 65, .counts = {0, 3, 0, 1}, .all_missing = true});
    compare(test_seed() + 120 + i, {.topk = 7, .counts = {0, 0}, .rule = line_rule(i % 3)});
  }
}

TEST_CASE("sparse: top-k to slots of more tokens than a grid has blocks") {
  compare(test_seed() + 200, {.topk = 5, .counts = std::vector<std::int64_t>(40, test_small() ? 2 : 64)});
}

TEST_CASE("sparse: top-k to slots of lines that a block can hold, and of longer ones") {
  int i = 0;
  for (const std::int64_t width : {4, 8189, 8192, 8193, 20000})
    for (const std::int64_t topk : {5, 2048, 5000}) {
      compare(test_seed() + 500 + i,
              {.topk = topk, .counts = {2, 3, 1}, .width = width, .bad_index = i % 2 == 0});
      ++i;
    }
}

TEST_CASE("sparse: top-k to slots of tables around a tile's width and far past it") {
  int i = 0;
  for (const std::int64_t width : captured_widths())
    for (const line_rule rule : {line_rule::of_row, line_rule::own}) {
      const bool alone = i % 4 < 2;
      compare(test_seed() + 700 + i, {.topk = 512 + i % 3,
                                      .counts = {1, 0, 2},
                                      .rule = rule,
                                      .width = width,
                                      .bad_index = true,
                                      .slots_alone = alone});
      ++i;
    }
}

TEST_CASE("sparse: top-k to slots makes an index past its table -1 and reports the token") {
  for (int i = 0; i < test_rounds(24); ++i)
    compare(test_seed() + 300 + i, {.topk = i % 2 ? 64 : 600,
                                    .counts = {2, 0, 4, 1},
                                    .rule = line_rule(i % 2),
                                    .width = 1 + i * 9,
                                    .bad_index = i % 3 != 0,
                                    .bad_line = i % 3 == 0 && i % 2 == 0});
}

TEST_CASE("sparse: top-k to slots writes the tail that is asked for and no other") {
  for (int i = 0; i < test_rounds(12); ++i)
    compare(test_seed() + 400 + i, {.topk = 61 + i, .counts = {1, 2}, .tail = some_tail(i)});
}

TEST_CASE("sparse: top-k to slots refuses by name what the host can see") {
  const stream at(test_device());
  const device_vector<std::int32_t> numbers(at, 64, 0);
  const device_vector<std::int64_t> wide(at, 64, 0);
  top_k_to_slots_params p{.live_tokens = numbers.data(),
                          .tokens = 2,
                          .indices = numbers.data(),
                          .index_stride = 8,
                          .index_columns = 8,
                          .topk = 8,
                          .table = numbers.data() + 16,
                          .table_stride = 8,
                          .table_lines = 2,
                          .table_columns = 8,
                          .slots = {.data = numbers.data() + 32, .stride = 8, .columns = 8}};
  const auto refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(top_k_to_slots(at, p), doctest::Contains(why), invalid_argument);
  };
  CHECK_NOTHROW(top_k_to_slots(at, p));
  SUBCASE("an input narrower than topk") {
    p.index_columns = 7;
    refused("indices has 7 columns, fewer than topk 8");
  }
  SUBCASE("an output narrower than topk") {
    p.slots.columns = 7;
    refused("slots has 7 columns, the longest row needs 8");
  }
  SUBCASE("indices of int64") {
    p.indices = wide.data();
    refused("indices must be int32, got int64");
  }
  SUBCASE("no topk") {
    p.topk = 0;
    refused("topk must be positive, got 0");
  }
  SUBCASE("a table without a line for every token") {
    p.table_lines = 1;
    refused("the table has 1 lines, fewer than 2 tokens");
  }
  SUBCASE("a stride below its columns") {
    p.index_stride = 7;
    refused("index_stride 7 is less than its 8 columns");
  }
  SUBCASE("a sink instead of -1") {
    p.slots.skip = 0;
    refused("slots.skip must be -1, got 0");
  }
  SUBCASE("no indices") {
    p.indices = {};
    refused("indices is null");
  }
}
