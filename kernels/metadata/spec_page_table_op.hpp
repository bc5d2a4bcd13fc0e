#pragma once

#include "kernels/metadata/page_lines.hpp"
#include "kernels/metadata/spec_page_table.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Entries kept as they are; a negative one becomes `skip`.
struct kept_entry {
  std::int32_t skip;
  STEPGRAPH_HD std::int32_t operator()(std::int32_t, std::int32_t entry) const {
    return entry < 0 ? skip : entry;
  }
  STEPGRAPH_HD static std::int32_t bad() { return -1; }
};

/// Column x is entry[x - first].
struct later_entries {
  const std::int32_t* entry;
  std::int32_t first;
  STEPGRAPH_HD std::int32_t one(std::int64_t x) const { return entry[x - first]; }
  STEPGRAPH_HD static quad four(std::int64_t) { return {}; }
  STEPGRAPH_HD static bool by_four() { return false; }
};

/// Body of `spec_page_table`. A line is a token.
struct spec_page_table_op {
  static constexpr const char* name = "spec_page_table";
  static constexpr op_id id = op_id::spec_page_table;
  static constexpr int tile_columns = 4096;
  struct line {
    std::int32_t columns;
    std::int32_t live;   // of them
    std::int32_t first;  // entries of the row's line
    std::int32_t row;    // -1: outside the table
  };
  spec_page_table_params p;

  STEPGRAPH_HD static constexpr int least_columns() { return 1024; }
  STEPGRAPH_HD int lines() const { return p.tokens; }
  STEPGRAPH_HD static std::int32_t clamped(const page_table_view& table, int line) {
    const std::int32_t length = table.length[line];
    return length < 0 ? 0 : length > table.columns ? static_cast<std::int32_t>(table.columns) : length;
  }

  STEPGRAPH_HD line load(int token) const {
    const bool is_live = token < live_count(p.live_tokens, p.tokens);
    if (!is_live) return {p.table.tail.written(0, p.table.columns, false), 0, 0, -1};
    const int row = p.row_of[token];
    const bool has_row = row >= 0 && row < p.by_row.lines;
    const std::int32_t first = has_row ? clamped(p.by_row, row) : 0;
    const std::int64_t total = std::int64_t{first} + clamped(p.by_token, token);
    const auto live = static_cast<std::int32_t>(total < p.table.columns ? total : p.table.columns);
    return {p.table.tail.written(live, p.table.columns), live, first, has_row ? row : -1};
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(p.live_tokens, p.tokens);
    for (int token = team.rank(); token < p.tokens; token += team.size()) {
      const line mine = load(token);
      p.total[token] = mine.live;
      if (token >= live) continue;
      if (mine.row < 0)
        p.faults.report(id, token, row_status::request_out_of_range, p.row_of[token]);
      else
        check_length(p.by_row, mine.row, token);
      check_length(p.by_token, token, token);
      const std::int64_t total = std::int64_t{mine.first} + clamped(p.by_token, token);
      if (total > p.table.columns) p.faults.report(id, token, row_status::capacity_exceeded, total);
    }
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int token, const line& line, std::int32_t begin,
                         std::int32_t end) const {
    const std::int32_t split = line.first < line.live ? line.first : line.live;
    const std::int32_t first_end = end < split ? end : split;
    const kept_entry keep{p.table.skip};
    const std::int32_t* const own = p.by_token.data + token * p.by_token.stride;
    if (begin < first_end) {
      const std::int32_t* const rows = p.by_row.data + line.row * p.by_row.stride;
      write_line(team, p.table, {first_end, first_end, rows}, token, 1, begin, first_end,
                 strided_entries{rows, 0}, keep);
    }
    const std::int32_t rest = begin > split ? begin : split;
    if (rest < end)
      write_line(team, p.table, {line.columns, line.live, own}, token, 1, rest, end,
                 later_entries{own, line.first}, keep);
  }

 private:
  STEPGRAPH_HD void check_length(const page_table_view& table, int line, int token) const {
    if (clamped(table, line) != table.length[line])
      p.faults.report(id, token, row_status::length_clamped, table.length[line]);
  }
};

}  // namespace stepgraph
