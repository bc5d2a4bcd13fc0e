#pragma once

#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/metadata/page_lines.hpp"
#include "kernels/metadata/row_vectors.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Output of `map_columns`: a row's pages and the same pages in the window's pool, from one load.
struct window_output {
  struct value {
    std::int32_t page;
    std::int32_t window;
  };
  mapped_page_converter window;
  page_converter page;
  index_map page_map;
  std::int32_t skip;   // of the page table
  std::int32_t* line;  // of the page table, or null
  std::int32_t* window_line;

  STEPGRAPH_HD value convert(std::int32_t x, std::int32_t entry) {
    const std::int32_t raw = page(x, entry);
    std::int64_t mapped = raw;
    if (page_map && raw >= 0) {
      if (!page_map.has(raw)) page.bad_column = x;
      mapped = page_map[raw];
    }
    return {mapped < 0 ? skip : static_cast<std::int32_t>(mapped), window(x, entry)};
  }
  STEPGRAPH_HD void store(std::int64_t x, const value& v) const {
    if (line) line[x] = v.page;
    window_line[x] = v.window;
  }
  STEPGRAPH_HD void store4(std::int64_t x, const value (&v)[4]) const {
    if (line) *reinterpret_cast<quad*>(line + x) = quad{{v[0].page, v[1].page, v[2].page, v[3].page}};
    *reinterpret_cast<quad*>(window_line + x) = quad{{v[0].window, v[1].window, v[2].window, v[3].window}};
  }
  STEPGRAPH_HD bool by_four() const { return aligned16(line) && aligned16(window_line); }
};

/// The vectors of decode metadata: lengths and their sums, and the sums of query tokens in the mode asked for.
template <class Team>
STEPGRAPH_HD void decode_vectors(Team& team, const decode_metadata_params& p) {
  constexpr op_id id = op_id::decode_metadata;
  const bool sums_queries = p.cu_seqlens_q_mode == query_mode::cumulative;
  const std::int32_t first_raw = sums_queries ? p.query.first_raw(team, p.lengths) : 0;
  write_lengths(team, p.lengths, p.cache_seqlens, p.cu_seqlens_k, p.faults, id);
  if (sums_queries)
    scan_query_tokens(team, p.lengths, p.query, p.cu_seqlens_q, p.faults, id, first_raw,
                      [](int, int, int) {});
  if (p.cu_seqlens_q_mode == query_mode::rows_times_stride)
    for (int k = team.rank(); k <= p.lengths.rows; k += team.size())
      p.cu_seqlens_q[k] = (k < p.lengths.live() ? k : p.lengths.live()) * p.q_stride;
}

/// Body of `decode_metadata` where the page table is asked for as it is, without maps, tail or window: small, as
/// this is the commonest of a step's nodes. A line is a row.
struct plain_decode_metadata_op {
  static constexpr const char* name = "decode_metadata";
  static constexpr op_id id = op_id::decode_metadata;
  static constexpr int tile_columns = 4096;
  static constexpr bool small = true;
  using line = page_line;
  decode_metadata_params p;

  STEPGRAPH_HD int lines() const { return p.lengths.rows; }
  STEPGRAPH_HD int least_columns() const { return least_columns_of(p.source.column_shift()); }

  STEPGRAPH_HD line load(int row) const {
    const std::int64_t request = p.requests.fetch(row);
    const int shift = p.source.page_shift;
    const auto length = static_cast<std::uint32_t>(short_length(p.lengths, row));
    const auto live = static_cast<std::int32_t>(
        guard_off("tail-wild") ? p.page_columns : (length + (1u << shift) - 1) >> shift);
    return {live, live, line_or_null(p.source, request)};
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    decode_vectors(team, p);
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end) const {
    std::int32_t* const to = p.page_table + row * p.page_table_stride;
    page_output<page_converter, true> out{{p.source, p.skip}, to, 0, 1};
    const strided_entries in{line.source, p.source.column_shift()};
    if (line.source)
      map_columns(team, in, out, begin, end);
    else
      fill_columns(team, to, 0, 1, begin, end, p.skip);
    if (!line.source && team.rank() == 0)
      p.faults.report(id, row, row_status::request_out_of_range, p.requests[row]);
    if (out.page.bad() >= 0) p.faults.report(id, row, row_status::slot_out_of_range, in.one(out.page.bad()));
  }

  /// Whether this op does all that `p` asks for.
  static bool serves(const decode_metadata_params& p) {
    return p.page_table && !p.page_map && !p.window.page_table && !p.window.out_cache_loc &&
           p.tail.mode == tail_mode::none;
  }
};

/// Body of `decode_metadata` with whatever is asked for; see the parameters. A line is a row.
struct decode_metadata_op {
  static constexpr const char* name = "decode_metadata";
  static constexpr op_id id = op_id::decode_metadata;
  static constexpr int tile_columns = 4096;
  using line = page_line;
  decode_metadata_params p;

  STEPGRAPH_HD int lines() const { return p.lengths.rows; }
  STEPGRAPH_HD int least_columns() const { return least_columns_of(p.source.column_shift()); }
  STEPGRAPH_HD table_sink table() const {
    return {p.page_table, p.page_table_stride, p.page_columns, p.skip, p.tail};
  }

  STEPGRAPH_HD line load(int row) const {
    if (!p.page_table && !p.window.page_table) return {0, 0, nullptr};
    const std::int64_t request = p.requests.fetch(row);
    return page_line_of(p.source, request, pages_of(p.lengths.length(row), p.source.page_shift), table(),
                        row < p.lengths.live());
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    decode_vectors(team, p);
    if (p.window.out_cache_loc) {
      team.sync();  // cu_seqlens_q is read
      for (int token = team.rank(); token < p.query.tokens; token += team.size()) {
        const std::int64_t slot = token < p.cu_seqlens_q[p.lengths.rows] ? window_slot(token) : -1;
        p.window.out_cache_loc.store(token, slot < 0 ? p.window.out_cache_loc_skip : slot);
      }
    }
  }

  /// `reporter`: the op that this one is a part of.
  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end,
                         op_id reporter = id) const {
    if (!line.source && begin < line.live && team.rank() == 0)
      p.faults.report(reporter, row, row_status::request_out_of_range, p.requests[row]);
    if (!p.window.page_table) {
      const bad_entry bad = write_pages(team, p.source, p.page_map, table(), line, row, 1, begin, end);
      if (bad.found) p.faults.report(reporter, row, row_status::slot_out_of_range, bad.value);
      return;
    }
    const std::int32_t live_end = line.source && end > line.live ? line.live : line.source ? end : begin;
    std::int32_t* const to = p.page_table ? p.page_table + row * p.page_table_stride : nullptr;
    std::int32_t* const window_to = p.window.page_table + row * p.window.page_table_stride;
    if (line.source) {
      const bool by_slot = static_cast<bool>(p.window.full_to_swa);
      window_output out{
          {p.source, by_slot ? p.window.full_to_swa : p.window.page_map, by_slot, p.window.skip},
          {p.source, -1},
          p.page_map,
          p.skip,
          to,
          window_to};
      const strided_entries in{line.source, p.source.column_shift()};
      map_columns<1>(team, in, out, begin, live_end);
      const bad_entry bad = bad_entry_of(in, out.page.bad() >= 0 ? out.page.bad() : out.window.bad());
      if (bad.found) p.faults.report(reporter, row, row_status::slot_out_of_range, bad.value);
    }
    for (std::int32_t x = (begin > live_end ? begin : live_end) + team.rank(); x < end; x += team.size()) {
      if (to) to[x] = x < line.live ? p.skip : p.tail.value;
      window_to[x] = x < line.live ? p.window.skip : p.window.tail_value;
    }
  }

 private:
  /// The slot in the window's pool that a live token is stored at, or -1.
  STEPGRAPH_HD std::int64_t window_slot(int token) const {
    const token_place at = place_of(p.lengths, p.query, p.cu_seqlens_q, token);
    if (at.causal == 0) return -1;
    const std::int64_t request = p.requests[at.row], position = at.causal - 1;
    const std::int64_t slot = slot_reported(p.source, request, position,
                                            p.source.known_slot(request, position), p.faults, id, at.row);
    return p.window.full_to_swa ? slot_by_slot_map(p.window.full_to_swa, slot, p.source, p.faults, id, at.row)
                                : slot_by_page_map(p.window.page_map, slot, p.source, p.faults, id, at.row);
  }
};

}  // namespace stepgraph
