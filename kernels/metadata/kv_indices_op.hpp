#pragma once

#include "kernels/metadata/kv_indices.hpp"
#include "kernels/metadata/page_lines.hpp"
#include "kernels/metadata/row_vectors.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

struct alignas(16) wide_pair {
  std::int64_t v[2];
};

/// Output of `map_columns`: column x lands at out[first + x], as far as the output goes.
template <class Converter>
struct packed_output {
  using value = std::int32_t;
  Converter converter;
  const index_sink& out;
  std::int64_t first;
  std::int64_t capacity;
  bool four = false;  // x a multiple of four is 16 bytes aligned, and all columns fit

  STEPGRAPH_HD value convert(std::int32_t x, std::int32_t entry) { return converter(x, entry); }
  STEPGRAPH_HD void store(std::int64_t x, value v) const {
    if (first + x < capacity) out.store(first + x, v);
  }
  STEPGRAPH_HD void store4(std::int64_t x, const value (&v)[4]) const {
    if (out.wide) {
      auto* const to = static_cast<std::int64_t*>(out.data) + first + x;
      *reinterpret_cast<wide_pair*>(to) = {v[0], v[1]};
      *reinterpret_cast<wide_pair*>(to + 2) = {v[2], v[3]};
    } else {
      *reinterpret_cast<quad*>(static_cast<std::int32_t*>(out.data) + first + x) = {{v[0], v[1], v[2], v[3]}};
    }
  }
  STEPGRAPH_HD bool by_four() const { return four; }

  static constexpr bool shifts = std::is_same_v<Converter, page_converter>;
  STEPGRAPH_HD static int shift() requires shifts { return 0; }
  STEPGRAPH_HD std::uint32_t limit() const requires shifts { return converter.limit; }
  STEPGRAPH_HD void store_good(std::int64_t x, std::int32_t slot) const requires shifts { store(x, slot); }
  STEPGRAPH_HD void store_good4(std::int64_t x, const quad& slots) const requires shifts {
    store4(x, slots.v);
  }
};

/// Column x is the entry of token x + start: entry[(x + start) >> shift].
struct token_entries {
  const std::int32_t* entry;
  int shift;
  std::int32_t start;
  STEPGRAPH_HD std::int32_t one(std::int64_t x) const { return entry[(x + start) >> shift]; }
  STEPGRAPH_HD quad four(std::int64_t x) const { return *reinterpret_cast<const quad*>(entry + x + start); }
  STEPGRAPH_HD bool by_four() const { return shift == 0 && aligned16(entry + start); }
};

/// Body of `kv_indices`. A line is a row.
struct kv_indices_op {
  static constexpr const char* name = "kv_indices";
  static constexpr op_id id = op_id::kv_indices;
  static constexpr int tile_columns = 4096;
  struct line {
    std::int32_t columns;
    std::int32_t start;
    const std::int32_t* source;  // the request's line; null where the request is out of range
  };
  kv_indices_params p;

  STEPGRAPH_HD static constexpr int least_columns() { return 1024; }
  STEPGRAPH_HD int lines() const { return p.lengths.rows; }
  static int head_blocks() { return 2; }  // four parts of a line where these are 64
  /// Columns of a row whose length is `length`; `start` becomes what they begin with.
  STEPGRAPH_HD std::int32_t columns_of(int row, std::int32_t length, std::int32_t& start) const {
    start = p.start ? p.start[row] : 0;
    start = start < 0 ? 0 : start > length ? length : start;
    return length - start;
  }
  STEPGRAPH_HD std::int32_t columns_of(int row) const {
    std::int32_t start = 0;
    return columns_of(row, short_length(p.lengths, row), start);
  }
  STEPGRAPH_HD line load(int row) const {
    const std::int64_t request = p.requests.fetch(row);
    line made{};
    made.columns = columns_of(row, short_length(p.lengths, row), made.start);
    made.source = line_or_null(p.source, request);
    return made;
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    scan_rows(
        team, p.lengths.rows, p.indptr, [&](int row) { return columns_of(row); },
        [&](int row, std::int64_t count, std::int64_t before) {
          p.lengths.length_reported(row, p.faults, id);
          std::int32_t start = 0;
          columns_of(row, short_length(p.lengths, row), start);
          if (row < p.lengths.live() && p.start && start != p.start[row])
            p.faults.report(id, row, row_status::start_clamped, p.start[row]);
          if (count > 0 && before + count > p.capacity)
            p.faults.report(id, row, row_status::capacity_exceeded, before + count);
        });
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end) const {
    const std::int64_t first = sum_before(team, row, [&](int other) { return columns_of(other); });
    if (!line.source) {
      if (team.rank() == 0) p.faults.report(id, row, row_status::request_out_of_range, p.requests[row]);
      for (std::int64_t x = begin + team.rank(); x < end && first + x < p.capacity; x += team.size())
        p.indices.store(first + x, p.skip);
      return;
    }
    const std::int32_t* const from = line.source;
    const bad_entry bad =
        p.source.page_granular || p.page_map || p.slot_map
            ? pack<4>(team, token_entries{from, p.source.page_granular ? p.source.page_shift : 0, line.start},
                      slot_converter{p.source, p.page_map, p.slot_map, p.skip, line.start}, first, begin, end)
            : pack<8>(team, token_entries{from, 0, line.start}, page_converter::of_slots(p.source, p.skip),
                      first, begin, end);
    if (bad.found) p.faults.report(id, row, row_status::slot_out_of_range, bad.value);
  }

 private:
  /// Columns [begin, end) of a row whose first index is out[first]; returns an entry that is out of range.
  template <int in_flight, class Team, class Converter>
  STEPGRAPH_HD bad_entry pack(Team& team, const token_entries& in, const Converter& converter,
                              std::int64_t first, std::int32_t begin, std::int32_t end) const {
    const std::int64_t at = first * (p.indices.wide ? 8 : 4);
    const bool four = aligned16(static_cast<const char*>(p.indices.data) + at) && first + end <= p.capacity;
    packed_output<Converter> out{converter, p.indices, first, p.capacity, four};
    map_columns<in_flight>(team, in, out, begin, end);
    return bad_entry_of(in, out.converter.bad());
  }
};

/// A row's prefix indices followed by its extend indices; skip, noted, outside their arrays.
struct unified_entries {
  const std::int32_t* prefix;
  const std::int32_t* extend;
  std::int64_t prefix_first, prefix_count, extend_first, extend_count;
  std::int32_t prefix_length;

  /// Where column x lies in its array.
  STEPGRAPH_HD std::int64_t place(std::int64_t x) const {
    return x < prefix_length ? prefix_first + x : extend_first + (x - prefix_length);
  }
  STEPGRAPH_HD bool has(std::int64_t x) const {
    const std::int64_t at = place(x);
    return at >= 0 && at < (x < prefix_length ? prefix_count : extend_count);
  }
  STEPGRAPH_HD std::int32_t one(std::int64_t x) const {
    if (!has(x)) return -1;
    return (x < prefix_length ? prefix : extend)[place(x)];
  }
  STEPGRAPH_HD static quad four(std::int64_t) { return {}; }
  STEPGRAPH_HD static bool by_four() { return false; }
};

struct unified_converter {
  const unified_entries& entries;
  std::int32_t skip;
  std::int32_t bad_column = -1;
  STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t entry) {
    if (!entries.has(x)) bad_column = x;
    return entry < 0 ? skip : entry;
  }
};

/// Body of `unified_kv_indices`. A line is a row.
struct unified_kv_indices_op {
  static constexpr const char* name = "unified_kv_indices";
  static constexpr op_id id = op_id::unified_kv_indices;
  static constexpr int tile_columns = 4096;
  struct line {
    std::int32_t columns;  // prefix and E, before the token bucket cuts E
    std::int32_t prefix;
  };
  unified_kv_indices_params p;

  STEPGRAPH_HD static constexpr int least_columns() { return 1024; }
  STEPGRAPH_HD int lines() const { return p.lengths.rows; }
  STEPGRAPH_HD std::int64_t raw_prefix(int row) const {
    return p.prefix_indptr[row + 1] - p.prefix_indptr[row];
  }
  STEPGRAPH_HD line load(int row) const {
    if (row >= p.lengths.live()) return {0, 0};  // prefix_indptr past n is not read
    const std::int64_t length = raw_prefix(row);
    const auto prefix = static_cast<std::int32_t>(length < 0               ? 0
                                                  : length > p.lengths.cap ? p.lengths.cap
                                                                           : length);
    return {prefix + p.query.count(p.lengths, row), prefix};
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    // note: two sums over the same rows, as the token bucket cuts the sum of E and not that of the prefixes
    std::int64_t prefixes = 0;
    if (team.rank() == 0) p.indptr.store(0, 0);
    std::int64_t queries = 0;
    for (int base = 0; base < p.lengths.rows; base += team.size()) {
      const int row = base + team.rank();
      const line mine = row < p.lengths.rows ? load(row) : line{0, 0};
      const auto prefix = team.exclusive_sum(mine.prefix);
      const auto query = team.exclusive_sum(mine.columns - mine.prefix);
      if (row < p.lengths.rows) {
        const std::int64_t all = queries + query.before + mine.columns - mine.prefix;
        const std::int64_t end = prefixes + prefix.before + mine.prefix + cut(all);
        p.indptr.store(row + 1, end);
        const std::int64_t begin = prefixes + prefix.before + cut(queries + query.before);
        report_row(row, mine, all, begin, end);
      }
      prefixes += prefix.total;
      queries += query.total;
    }
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end) const {
    const std::int64_t prefixes = sum_before(team, row, [&](int other) { return load(other).prefix; });
    const std::int64_t queries =
        sum_before(team, row, [&](int other) { return p.query.count(p.lengths, other); });
    const std::int64_t first_query = cut(queries);
    const std::int64_t kept = cut(queries + line.columns - line.prefix) - first_query;
    if (end > line.prefix + kept) end = static_cast<std::int32_t>(line.prefix + kept);
    const unified_entries in{p.prefix_indices,
                             p.extend_indices,
                             p.prefix_indptr[row],
                             p.prefix_count,
                             p.extend_start ? p.extend_start[row] : first_query,
                             p.extend_count,
                             line.prefix};
    packed_output<unified_converter> out{{in, p.skip}, p.indices, prefixes + first_query, p.capacity};
    map_columns(team, in, out, begin, end);
    if (out.converter.bad_column >= 0)
      p.faults.report(id, row, row_status::slot_out_of_range, in.place(out.converter.bad_column));
  }

 private:
  STEPGRAPH_HD std::int64_t cut(std::int64_t tokens) const {
    return tokens < p.query.tokens ? tokens : p.query.tokens;
  }

  /// `all_queries`: tokens of this row and those before it; the row's entries are [begin, end).
  STEPGRAPH_HD void report_row(int row, const line& mine, std::int64_t all_queries, std::int64_t begin,
                               std::int64_t end) const {
    if (row >= p.lengths.live()) return;
    p.lengths.length_reported(row, p.faults, id);
    if (raw_prefix(row) != mine.prefix) p.faults.report(id, row, row_status::length_clamped, raw_prefix(row));
    const std::int32_t queries = mine.columns - mine.prefix;
    if (p.query.raw(row) != queries || (queries > 0 && all_queries > p.query.tokens))
      p.faults.report(id, row, row_status::query_count_clamped, p.query.raw(row));
    if (end > begin && end > p.capacity) p.faults.report(id, row, row_status::capacity_exceeded, end);
  }
};

}  // namespace stepgraph
