#include "bench/sparse_cases.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace stepgraph::bench {
namespace {

std::vector<std::int32_t> filled(std::int64_t count, std::int64_t value) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(count), static_cast<std::int32_t>(value));
}

std::vector<std::int32_t> random_below(std::int64_t count, std::uint32_t limit) {
  std::mt19937 random(std::random_device{}());
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (auto& value : values) value = static_cast<std::int32_t>(random() % limit);
  return values;
}

/// [0, v0, v0 + v1, ...].
std::vector<std::int32_t> starts_of(const std::vector<std::int32_t>& counts) {
  std::vector<std::int32_t> sums{0};
  for (const std::int32_t count : counts) sums.push_back(sums.back() + count);
  return sums;
}

std::vector<std::int32_t> rows_of(const std::vector<std::int32_t>& counts) {
  std::vector<std::int32_t> rows;
  for (std::size_t r = 0; r < counts.size(); ++r)
    rows.insert(rows.end(), counts[r], static_cast<std::int32_t>(r));
  return rows;
}

/// Lines of `columns` pages whose live ones are all of the cache's, in a random order.
std::vector<std::int32_t> scattered_pages(const std::vector<std::int32_t>& lengths, std::int64_t columns,
                                          std::int64_t page) {
  std::vector<std::int32_t> table(lengths.size() * columns, -1);
  std::vector<std::int64_t> places;
  for (std::size_t r = 0; r < lengths.size(); ++r)
    for (std::int64_t x = 0; x * page < lengths[r]; ++x) places.push_back(r * columns + x);
  std::shuffle(places.begin(), places.end(), std::mt19937(std::random_device{}()));
  for (std::size_t i = 0; i < places.size(); ++i) table[places[i]] = static_cast<std::int32_t>(i);
  return table;
}

std::int64_t pages_in(const std::vector<std::int32_t>& lengths, std::int64_t page) {
  std::int64_t pages = 0;
  for (const std::int32_t length : lengths) pages += (length + page - 1) / page;
  return pages;
}

}  // namespace

gather_inputs::gather_inputs(stream_ref at, const gather_case& shape)
    : rows(static_cast<std::int64_t>(shape.lengths.size())),
      width(shape.width),
      tokens(std::accumulate(shape.lengths.begin(), shape.lengths.end(), std::int64_t{0})),
      pages(pages_in(shape.lengths, page)),
      live_rows(at, filled(1, rows)),
      lengths(at, shape.lengths),
      table(at, scattered_pages(shape.lengths, width / page, page)),
      sums(at, rows + 1),
      cache(at, pages * page * 132),
      keys(at, tokens * 128),
      scales(at, tokens) {}

get_k_and_s_params gather_inputs::params() const {
  return {.lengths = {.live_rows = live_rows.data(),
                      .rows = static_cast<std::int32_t>(rows),
                      .seq_lens = lengths.data(),
                      .cap = width},
          .page_table = table.data(),
          .page_table_stride = width / page,
          .page_columns = width / page,
          .cache = {.data = cache.data(), .pages = pages, .page_stride = page * 132},
          .cu_seqlens_k = sums.data(),
          .keys = keys.data(),
          .scales = scales.data(),
          .capacity = tokens};
}

top_k_inputs::top_k_inputs(stream_ref at, const top_k_case& shape)
    : rows(static_cast<std::int64_t>(shape.counts.size())),
      tokens(std::accumulate(shape.counts.begin(), shape.counts.end(), std::int64_t{0})),
      topk(shape.topk),
      width(shape.width),
      decode(shape.decode),
      live_tokens(at, filled(1, tokens)),
      row_of(at, rows_of(shape.counts)),
      indices(at, random_below(tokens * topk, static_cast<std::uint32_t>(live))),
      table(at, random_below(rows * width, 1 << 24)),
      slots(at, tokens * topk) {}

top_k_to_slots_params top_k_inputs::params() const {
  return {.live_tokens = live_tokens.data(),
          .tokens = static_cast<std::int32_t>(tokens),
          .row_of = decode ? nullptr : row_of.data(),
          .indices = indices.data(),
          .index_stride = topk,
          .index_columns = topk,
          .topk = static_cast<std::int32_t>(topk),
          .table = table.data(),
          .table_stride = width,
          .table_lines = static_cast<std::int32_t>(rows),
          .table_columns = width,
          .slots = {.data = slots.data(), .stride = topk, .columns = topk}};
}

combine_inputs::combine_inputs(stream_ref at, const combine_case& shape)
    : rows(shape.rows),
      tokens(shape.rows * shape.tokens_a_row),
      topk(shape.topk),
      window(shape.window),
      live_rows(at, filled(1, rows)),
      starts(at, starts_of(filled(rows, shape.tokens_a_row))),
      lengths(at, filled(rows, 65536)),
      gathered(at, filled(rows, shape.tokens_a_row + window - 1)),
      compressed_base(at, random_below(rows, 1 << 20)),
      swa_base(at, random_below(rows, 1 << 20)),
      topk_indices(at, random_below(tokens * topk, 1 << 14)),
      indices(at, tokens * ((topk + window + 127) / 128 * 128)),
      length(at, tokens) {}

combine_top_k_and_window_params combine_inputs::params() const {
  const std::int64_t padded = (topk + window + 127) / 128 * 128;
  return {.lengths = {.live_rows = live_rows.data(),
                      .rows = static_cast<std::int32_t>(rows),
                      .seq_lens = lengths.data(),
                      .cap = 1 << 20},
          .query_start_loc = starts.data(),
          .tokens = static_cast<std::int32_t>(tokens),
          .topk_indices = topk_indices.data(),
          .topk_stride = topk,
          .topk_columns = topk,
          .topk = topk,
          .window = window,
          .ratio = 4,
          .gather_len = gathered.data(),
          .compressed_base = compressed_base.data(),
          .swa_base = swa_base.data(),
          .indices = {.data = indices.data(), .stride = padded, .columns = padded},
          .length = length.data()};
}

}  // namespace stepgraph::bench
