#pragma once

#include "kernels/metadata/dsa_metadata_op.hpp"

namespace stepgraph {

/// Body of `dsa_metadata` where page and token table come from a token-granular source as they are: small, as
/// this is the commonest form, and the one that writes most. A line is a row, which makes both tables.
struct plain_dsa_metadata_op : dsa_metadata_op {
  static constexpr bool small = true;

  STEPGRAPH_HD int lines() const { return rows(); }
  /// Many parts of a line where an entry is stored on several: blocks that end at different times keep loads and
  /// stores beside each other.
  int head_blocks() const { return p.page_table_1 && p.line_per_token && p.query.max_count > 1 ? 8 : 2; }
  STEPGRAPH_HD line load(int row) const {
    const std::int64_t request = p.requests.fetch(row);
    const std::int32_t length = short_length(p.lengths, row);
    const auto live =
        static_cast<std::int32_t>(p.page_table_1 ? length : pages_of(length, p.source.page_shift));
    return {live, live, line_or_null(p.source, request)};
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end) const {
    const token_lines to = lines_of(team, row);
    if (to.count == 0) return;
    if (!line.source && team.rank() == 0)
      p.faults.report(id, row, row_status::request_out_of_range, p.requests[row]);
    const bad_entry bad = p.page_table_1
                              ? write_slots_and_pages(team, line, to.first, to.count, begin, end)
                              : write_line(team, p.real_page_table, line, to.first, to.count, begin, end,
                                           strided_entries{line.source, p.source.page_shift},
                                           page_converter{p.source, p.real_page_table.skip});
    if (bad.found) p.faults.report(id, row, row_status::slot_out_of_range, bad.value);
  }

  /// Whether this op does all that `p` asks for.
  static bool serves(const dsa_metadata_params& p) {
    const auto plain = [](const table_sink& table) { return table.tail.mode == tail_mode::none; };
    return p.real_page_table && !p.pooled_table && !p.page_map && !p.source.page_granular &&
           plain(p.real_page_table) && plain(p.page_table_1);
  }
};

}  // namespace stepgraph
