#pragma once

#include <cstdint>

#include "kernels/columns.hpp"
#include "kernels/page_source.hpp"

/// What the page tables of all ops have in common: entries of a request's line become pages.
namespace stepgraph {

/// A line of a page table: where its entries come from, and how far it goes.
struct page_line {
  std::int32_t columns;        // written, the tail included
  std::int32_t live;           // of them
  const std::int32_t* source;  // the request's line; null where the request is out of range
};

/// `row`'s line for `live` columns (0 for a dead row).
STEPGRAPH_HD page_line page_line_of(const page_source& source, std::int64_t request, std::int64_t live,
                                    const table_sink& table, bool is_live) {
  const auto count = static_cast<std::int32_t>(live < table.columns ? live : table.columns);
  return {table.tail.written(count, table.columns, is_live), count,
          source.has_request(request) ? source.line(request) : nullptr};
}

/// A table's entries as pages: divided by the page size and checked.
struct page_converter {
  int entry_shift;      // entry to page
  std::uint32_t limit;  // pages; an entry at or past it, or negative, is reported
  std::int32_t skip;
  std::int32_t bad_column = -1;

  STEPGRAPH_HD page_converter(const page_source& source, std::int32_t skip_value)
      : entry_shift(source.page_granular ? 0 : source.page_shift),
        limit(source.pool_pages > 0 && source.pool_pages < (std::int64_t{1} << 31)
                  ? static_cast<std::uint32_t>(source.pool_pages)
                  : 0x80000000u),
        skip(skip_value) {}

  /// Page of `entry`, or `skip`.
  STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t entry) {
    const std::int32_t page = entry >> entry_shift;
    const bool good = static_cast<std::uint32_t>(page) < limit;
    if (!good) bad_column = x;
    return good ? page : skip;
  }
};

/// The same, looked up in a map of pages, or in a map of slots whose entries are divided again.
struct mapped_page_converter {
  page_converter raw;
  index_map map;
  int slot_shift;   // page to the map's index: 0 for a map of pages
  std::int32_t skip;

  STEPGRAPH_HD mapped_page_converter(const page_source& source, const index_map& by, bool by_slot, std::int32_t value)
      : raw(source, -1), map(by), slot_shift(by_slot ? source.page_shift : 0), skip(value) {}

  STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t entry) {
    const std::int32_t page = raw(x, entry);
    if (page < 0) return skip;
    // a token-granular table names the slot itself, one of pages its page
    const bool entry_is_slot = slot_shift > 0 && raw.entry_shift > 0;
    const std::int64_t index = entry_is_slot ? entry : std::int64_t{page} << slot_shift;
    if (!map.has(index)) raw.bad_column = x;
    const std::int64_t mapped = map[index];
    return mapped < 0 ? skip : static_cast<std::int32_t>(mapped >> slot_shift);
  }
};

/// Output of `map_columns`: one table of pages, every value on `copies` lines.
template <class Converter>
struct page_output {
  using value = std::int32_t;
  Converter page;
  std::int32_t* line;
  std::int64_t stride;
  int copies;

  STEPGRAPH_HD value convert(std::int32_t x, std::int32_t entry) { return page(x, entry); }
  STEPGRAPH_HD void store(std::int32_t x, value v) const {
    for (int i = 0; i < copies; ++i) line[i * stride + x] = v;
  }
  STEPGRAPH_HD void store4(std::int32_t x, const value (&v)[4]) const {
    for (int i = 0; i < copies; ++i)
      *reinterpret_cast<quad*>(line + i * stride + x) = quad{{v[0], v[1], v[2], v[3]}};
  }
  STEPGRAPH_HD bool by_four() const { return aligned16(line) && (copies <= 1 || (stride & 3) == 0); }
};

/// Columns [begin, end) of one line of pages, onto `copies` lines from `line_index` on, and the tail.
template <class Team>
STEPGRAPH_HD void write_page_line(Team& team, const page_source& source, const index_map& map, const table_sink& table,
                                  const page_line& line, std::int64_t line_index, int copies, std::int32_t begin,
                                  std::int32_t end, const fault_sink& faults, op_id op, int row) {
  const std::int32_t live_end = end < line.live ? end : line.live;
  std::int32_t* const to = table.line(line_index);
  if (line.source) {
    const strided_entries entries{line.source, source.column_shift()};
    std::int32_t bad_column = -1;
    if (!map) {
      page_output<page_converter> out{{source, table.skip}, to, table.stride, copies};
      map_columns(team, entries, out, begin, live_end);
      bad_column = out.page.bad_column;
    } else {
      page_output<mapped_page_converter> out{{source, map, false, table.skip}, to, table.stride, copies};
      map_columns<2>(team, entries, out, begin, live_end);
      bad_column = out.page.raw.bad_column;
    }
    if (bad_column >= 0) faults.report(op, row, row_status::slot_out_of_range, bad_column);
  } else {
    fill_columns(team, to, table.stride, copies, begin, live_end, table.skip);
  }
  if (end > line.live)
    fill_columns(team, to, table.stride, copies, begin > line.live ? begin : line.live, end, table.tail.value);
}

}  // namespace stepgraph
