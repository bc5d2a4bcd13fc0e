#pragma once

#include <cstdint>
#include <type_traits>

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

/// A captured row's lengths.length(row) in fewer steps one after the other, as `cap` fits 32 bits: every entry
/// of the row's line waits for it.
STEPGRAPH_HD std::int32_t short_length(const row_lengths& lengths, int row) {
  const std::int32_t n = *lengths.live_rows;
  const std::int64_t value = lengths.raw(row);
  const auto low = static_cast<std::uint32_t>(value), cap = static_cast<std::uint32_t>(lengths.cap);
  const auto high = static_cast<std::int32_t>(value >> 32);
  const std::uint32_t past = high > 0 ? cap : guard_off("negative-length") ? low : 0;
  const std::uint32_t kept = high != 0 ? past : low < cap ? low : cap;
  return row < n || guard_off("pad-zero") ? static_cast<std::int32_t>(kept) : 0;
}

/// The request's line, or null where it is out of range, without a branch.
STEPGRAPH_HD const std::int32_t* line_or_null(const page_source& source, std::int64_t request) {
  const bool has = source.has_request(request);
  const std::int32_t* const line = source.line(has ? request : 0);
  return has ? line : nullptr;
}

/// `row`'s line for `live` columns (0 for a dead row).
STEPGRAPH_HD page_line page_line_of(const page_source& source, std::int64_t request, std::int64_t live,
                                    const table_sink& table, bool is_live) {
  const auto count = static_cast<std::int32_t>(live < table.columns ? live : table.columns);
  return {table.tail.written(count, table.columns, is_live), count,
          source.has_request(request) ? source.line(request) : nullptr};
}

/// An entry that was out of range, if one was: what is reported.
struct bad_entry {
  bool found = false;
  std::int32_t value = 0;
};
/// That of `column`, -1: none. Read once more, so that only its column is kept while a line is moved.
template <class In>
STEPGRAPH_HD bad_entry bad_entry_of(const In& in, std::int32_t column) {
  return column < 0 ? bad_entry{} : bad_entry{true, in.one(column)};
}

/// A table's entries as pages: divided by the page size and checked.
struct page_converter {
  int entry_shift;      // entry to page
  std::uint32_t limit;  // pages; an entry at or past it, or negative, is reported
  std::int32_t skip;
  int result_shift;  // pages to groups of pages, pooled keys
  std::int32_t bad_column = -1;

  STEPGRAPH_HD page_converter(const page_source& source, std::int32_t skip_value, int group_shift = 0)
      : entry_shift(source.page_granular ? 0 : source.page_shift),
        limit(source.pool_pages > 0 && source.pool_pages < (std::int64_t{1} << 31)
                  ? static_cast<std::uint32_t>(source.pool_pages)
                  : 0x80000000u),
        skip(skip_value),
        result_shift(group_shift) {}

  /// The entries kept as they are: slots of a token-granular source.
  STEPGRAPH_HD static page_converter of_slots(const page_source& source, std::int32_t skip_value) {
    page_converter made(source, skip_value);
    made.entry_shift = 0;
    const std::int64_t slots = std::int64_t{made.limit} << source.page_shift;
    made.limit = slots < (std::int64_t{1} << 31) ? static_cast<std::uint32_t>(slots) : 0x80000000u;
    return made;
  }

  /// Page of `entry`, or `skip`.
  STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t entry) {
    const std::int32_t page = entry >> entry_shift;
    const bool good = static_cast<std::uint32_t>(page) < limit;
    if (!good) bad_column = x;
    return good ? page >> result_shift : skip;
  }
  STEPGRAPH_HD std::int32_t bad() const { return bad_column; }
};

/// The same, looked up in a map of pages, or in a map of slots whose entries are divided again.
struct mapped_page_converter {
  page_converter raw;
  index_map map;
  int slot_shift;  // page to the map's index: 0 for a map of pages
  std::int32_t skip;
  int result_shift;

  STEPGRAPH_HD mapped_page_converter(const page_source& source, const index_map& by, bool by_slot,
                                     std::int32_t value, int group_shift = 0)
      : raw(source, -1),
        map(by),
        slot_shift(by_slot ? source.page_shift : 0),
        skip(value),
        result_shift(slot_shift + group_shift) {}

  STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t entry) {
    const std::int32_t page = raw(x, entry);
    if (page < 0) return skip;
    // a token-granular table names the slot itself, one of pages its page
    const bool entry_is_slot = slot_shift > 0 && raw.entry_shift > 0;
    const std::int64_t index = entry_is_slot ? entry : std::int64_t{page} << slot_shift;
    if (!map.has(index)) raw.bad_column = x;
    const std::int64_t mapped = map[index];
    return mapped < 0 ? skip : static_cast<std::int32_t>(mapped >> result_shift);
  }
  STEPGRAPH_HD std::int32_t bad() const { return raw.bad_column; }
};

/// A table's entries as the KV slots of tokens: column x plus `first` is the token's position. Looked up in a
/// page map or a slot map, where there is one.
struct slot_converter {
  page_converter raw;
  int page_shift;
  std::int32_t first;
  std::int32_t skip;
  index_map page_map;
  index_map slot_map;

  STEPGRAPH_HD slot_converter(const page_source& source, const index_map& by_page, const index_map& by_slot,
                              std::int32_t value, std::int32_t first_token = 0)
      : raw(source, -1),
        page_shift(source.page_shift),
        first(first_token),
        skip(value),
        page_map(by_page),
        slot_map(by_slot) {}

  STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t entry) {
    const std::int32_t page = raw(x, entry);
    if (page < 0) return skip;
    const std::int64_t in_page = (raw.entry_shift > 0 || page_shift == 0 ? entry : std::int64_t{x} + first) &
                                 ((std::int64_t{1} << page_shift) - 1);
    std::int64_t slot = (std::int64_t{page} << page_shift) + in_page;
    if (page_map) {
      if (!page_map.has(page)) raw.bad_column = x;
      const std::int64_t mapped = page_map[page];
      slot = mapped < 0 ? -1 : (mapped << page_shift) + in_page;
    } else if (slot_map) {
      if (!slot_map.has(slot)) raw.bad_column = x;
      slot = slot_map[slot];
    }
    return slot < 0 ? skip : static_cast<std::int32_t>(slot);
  }
  STEPGRAPH_HD std::int32_t bad() const { return raw.bad_column; }
};

/// Output of `map_columns`: one table of pages, every value on `copies` lines. `streamed`: more than the L2
/// holds, so what is written leaves it first.
template <class Converter, bool one_line = false, bool streamed = false>
struct page_output {
  using value = std::int32_t;
  Converter page;
  std::int32_t* line;
  std::int64_t stride;
  int copies;

  STEPGRAPH_HD value convert(std::int32_t x, std::int32_t entry) { return page(x, entry); }
  STEPGRAPH_HD int lines() const { return one_line ? 1 : copies; }

  static constexpr bool shifts = std::is_same_v<Converter, page_converter>;
  STEPGRAPH_HD int shift() const requires shifts { return page.entry_shift; }
  STEPGRAPH_HD std::uint32_t limit() const requires shifts { return page.limit; }
  STEPGRAPH_HD void store_good(std::int64_t x, std::int32_t found) const requires shifts {
    store(x, found >> page.result_shift);
  }
  STEPGRAPH_HD void store_good4(std::int64_t x, const quad& found) const requires shifts {
    const int by = page.result_shift;
    store4(x, {found.v[0] >> by, found.v[1] >> by, found.v[2] >> by, found.v[3] >> by});
  }
  STEPGRAPH_HD void store(std::int64_t x, value v) const {
    for (int i = 0; i < lines(); ++i) line[i * stride + x] = v;
  }
  STEPGRAPH_HD void store4(std::int64_t x, const value (&v)[4]) const {
    const quad four{{v[0], v[1], v[2], v[3]}};
    for (int i = 0; i < lines(); ++i) {
      if constexpr (streamed)
        store_streamed(line + i * stride + x, four);
      else
        *reinterpret_cast<quad*>(line + i * stride + x) = four;
    }
  }
  STEPGRAPH_HD bool by_four() const { return aligned16(line) && (lines() <= 1 || (stride & 3) == 0); }
};

/// Columns [begin, end) of one line, converted, onto `copies` lines of `table` from `first_line` on, and the
/// tail. Returns an entry that was out of range.
template <int in_flight = 4, bool streamed = false, class Team, class In, class Converter>
STEPGRAPH_HD bad_entry write_line(Team& team, const table_sink& table, const page_line& line,
                                  std::int64_t first_line, int copies, std::int32_t begin, std::int32_t end,
                                  const In& in, const Converter& converter) {
  const std::int32_t live_end = end < line.live ? end : line.live;
  page_output<Converter, false, streamed> out{converter, table.line(first_line), table.stride, copies};
  if (line.source)
    map_columns<in_flight>(team, in, out, begin, live_end);
  else
    fill_columns(team, out.line, table.stride, copies, begin, live_end, table.skip);
  if (end > line.live)
    fill_columns(team, out.line, table.stride, copies, begin > line.live ? begin : line.live, end,
                 table.tail.value);
  return bad_entry_of(in, out.page.bad());
}

/// The same for a table of pages, or of groups of 2^group_shift pages.
template <class Team>
STEPGRAPH_HD bad_entry write_pages(Team& team, const page_source& source, const index_map& map,
                                   const table_sink& table, const page_line& line, std::int64_t first_line,
                                   int copies, std::int32_t begin, std::int32_t end, int group_shift = 0) {
  const strided_entries in{line.source, source.column_shift() + group_shift};
  if (!map)
    return write_line(team, table, line, first_line, copies, begin, end, in,
                      page_converter{source, table.skip, group_shift});
  return write_line<2>(team, table, line, first_line, copies, begin, end, in,
                       mapped_page_converter{source, map, false, table.skip, group_shift});
}

/// The same for a table of the slots of tokens.
template <class Team>
STEPGRAPH_HD bad_entry write_slots(Team& team, const page_source& source, const index_map& map,
                                   const table_sink& table, const page_line& line, std::int64_t first_line,
                                   int copies, std::int32_t begin, std::int32_t end) {
  if (!source.page_granular && !map)
    return write_line<4, true>(team, table, line, first_line, copies, begin, end,
                               strided_entries{line.source, 0}, page_converter::of_slots(source, table.skip));
  const slot_converter converter{source, map, {}, table.skip};
  if (source.page_granular)
    return write_line<2>(team, table, line, first_line, copies, begin, end,
                         repeated_entries{line.source, source.page_shift}, converter);
  return write_line<2>(team, table, line, first_line, copies, begin, end, strided_entries{line.source, 0},
                       converter);
}

/// Output of `map_columns`: the slots of a row's tokens, and its pages from the same entries, on `copies` lines
/// of a table each.
struct slots_and_pages_output {
  struct value {
    std::int32_t slot;
    std::int32_t page;
  };
  page_converter slot;  // of_slots
  int page_shift;
  std::int32_t page_skip;
  std::int32_t* slots;
  std::int32_t* pages;
  std::int64_t slots_stride, pages_stride;
  int copies;

  STEPGRAPH_HD value convert(std::int32_t x, std::int32_t entry) {
    const bool good = static_cast<std::uint32_t>(entry) < slot.limit;
    return {slot(x, entry), good ? entry >> page_shift : page_skip};
  }
  STEPGRAPH_HD static int shift() { return 0; }
  STEPGRAPH_HD std::uint32_t limit() const { return slot.limit; }
  STEPGRAPH_HD void store_good(std::int64_t x, std::int32_t entry) const {
    store(x, {entry, entry >> page_shift});
  }
  STEPGRAPH_HD void store_good4(std::int64_t x, const quad& entries) const {
    for (int i = 0; i < copies; ++i) store_streamed(slots + i * slots_stride + x, entries);
    // a page of four tokens or more begins at a multiple of four
    STEPGRAPH_UNROLL
    for (int k = 0; k < 4; ++k)
      if (k == 0 || page_shift < 2) store_page(x + k, entries.v[k] >> page_shift);
  }
  STEPGRAPH_HD void store(std::int64_t x, const value& v) const {
    for (int i = 0; i < copies; ++i) slots[i * slots_stride + x] = v.slot;
    store_page(x, v.page);
  }
  STEPGRAPH_HD static void store4(std::int64_t, const value (&)[4]) {}  // one by one where an entry is bad
  STEPGRAPH_HD bool by_four() const { return aligned16(slots) && (copies <= 1 || (slots_stride & 3) == 0); }

 private:
  /// The page of a token that is the first of its page.
  STEPGRAPH_HD void store_page(std::int64_t x, std::int32_t page) const {
    if ((x & ((1 << page_shift) - 1)) != 0) return;
    for (int i = 0; i < copies; ++i) pages[i * pages_stride + (x >> page_shift)] = page;
  }
};

}  // namespace stepgraph
