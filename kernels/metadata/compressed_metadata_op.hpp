#pragma once

#include "kernels/metadata/compressed_metadata.hpp"
#include "kernels/metadata/page_lines.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// A page's entries of a compressed cache: column x is entry x mod m of its page, m = 2^shift.
struct compressed_converter {
  int shift;
  std::int32_t skip;

  STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t page) const {
    return page < 0 ? skip : (page << shift) + (x & ((1 << shift) - 1));
  }
  STEPGRAPH_HD static std::int32_t bad() { return -1; }
};

/// Body of `compressed_metadata`. Lines are tokens, level after level.
struct compressed_metadata_op {
  static constexpr const char* name = "compressed_metadata";
  static constexpr op_id id = op_id::compressed_metadata;
  static constexpr int tile_columns = 4096;
  static constexpr bool small = true;
  using line = page_line;
  compressed_metadata_params p;

  STEPGRAPH_HD static constexpr int least_columns() { return 1024; }
  STEPGRAPH_HD int lines() const { return p.tokens * p.levels; }
  STEPGRAPH_HD int live() const { return live_count(p.live_tokens, p.tokens); }
  /// c of a token, 0 for a dead one.
  STEPGRAPH_HD std::int32_t causal(int token) const {
    const std::int32_t value = p.causal_length[token];
    return token >= live() || value < 0 ? 0 : value;
  }

  /// Level of a line; `index` becomes the token.
  STEPGRAPH_HD int split(int& index) const {
    int which = 0;
    for (; index >= p.tokens; index -= p.tokens) ++which;
    return which;
  }

  /// The token's line of the page table.
  STEPGRAPH_HD int line_of(int token) const { return p.row_of ? p.row_of[token] : token; }

  STEPGRAPH_HD line load(int index) const {
    int token = index;
    const int which = split(token);
    const compression_level& level = p.level[which];
    if (!level.page_indices) return {0, 0, nullptr};
    const table_sink& to = level.page_indices;
    const std::int64_t length = causal(token) >> level.ratio_shift;
    const auto count = static_cast<std::int32_t>(length < to.columns ? length : to.columns);
    const int from = line_of(token);
    return {to.tail.written(count, to.columns, token < live()), count,
            from >= 0 && from < p.page_lines ? p.page_table + from * p.page_table_stride : nullptr};
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    for (int token = team.rank(); token < p.tokens; token += team.size()) {
      const std::int32_t c = causal(token);
      const std::int64_t loc = token < live() && token < p.out_locs ? p.out_loc[token] : -1;
      STEPGRAPH_UNROLL
      for (int i = 0; i < compressed_metadata_params::max_levels; ++i)
        if (i < p.levels) level_vectors(p.level[i], token, c, loc);
    }
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int index, const line& line, std::int32_t begin,
                         std::int32_t end) const {
    int token = index;
    const int which = split(token);
    const compression_level& level = p.level[which];
    const int shift = p.page_shift - level.ratio_shift;
    page_line readable = line;
    // past the page table's own columns there is nothing to point at
    const std::int64_t most = p.page_columns << shift;
    const bool cut = line.live > most;
    if (cut) readable.live = static_cast<std::int32_t>(most);
    if (team.rank() == 0 && begin == 0 && line.live > 0) {
      if (!line.source)
        p.faults.report(id, token, row_status::request_out_of_range, line_of(token));
      else if (cut)
        p.faults.report(id, token, row_status::length_clamped, causal(token) >> level.ratio_shift);
    }
    const std::int32_t split = cut && begin < readable.live ? readable.live : begin;
    const std::int32_t read_end = cut ? (end < split ? end : split) : end;
    if (begin < read_end)
      write_line(team, level.page_indices, readable, token, 1, begin, read_end,
                 repeated_entries{line.source, shift}, compressed_converter{shift, level.page_indices.skip});
    std::int32_t* const to = level.page_indices.line(token);
    for (std::int32_t x = read_end + team.rank(); x < end; x += team.size())
      to[x] = x < line.live ? level.page_indices.skip : level.page_indices.tail.value;
  }

 private:
  STEPGRAPH_HD void level_vectors(const compression_level& level, int token, std::int32_t c,
                                  std::int64_t loc) const {
    const std::int32_t length = c >> level.ratio_shift;
    const bool complete = c > 0 && (c & ((1 << level.ratio_shift) - 1)) == 0;
    if (level.out_loc)
      level.out_loc.store(token, complete && loc >= 0 ? loc >> level.ratio_shift : level.out_loc_skip);
    if (level.positions)
      level.positions[token] = c > 0 ? ((c - 1) >> level.ratio_shift) << level.ratio_shift : 0;
    if (level.length) level.length[token] = length;
    if (level.length_clamped) level.length_clamped[token] = token >= live() ? 0 : length > 1 ? length : 1;
    if (level.page_indices && length > level.page_indices.columns)
      p.faults.report(id, token, row_status::capacity_exceeded, length);
  }
};

}  // namespace stepgraph
