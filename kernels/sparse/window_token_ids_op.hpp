#pragma once

#include "kernels/metadata/kv_indices_op.hpp"
#include "kernels/sparse/window_token_ids.hpp"

namespace stepgraph {

/// Body of `window_token_ids`: KV indices of each row's last g tokens. A line is a row.
struct window_token_ids_op {
  static constexpr const char* name = "window_token_ids";
  static constexpr op_id id = op_id::window_token_ids;
  static constexpr int tile_columns = 4096;
  struct line {
    std::int32_t columns;  // g
    std::int32_t start;    // len - g
  };
  window_token_ids_params p;

  STEPGRAPH_HD static constexpr int least_columns() { return 1024; }
  STEPGRAPH_HD int lines() const { return p.lengths.rows; }
  STEPGRAPH_HD line load(int row) const {
    const std::int64_t length = p.lengths.length(row);
    const std::int64_t seen = std::int64_t{p.query.count(p.lengths, row)} + p.window - 1;
    const auto columns = static_cast<std::int32_t>(length < seen ? length : seen);
    return {columns, static_cast<std::int32_t>(length) - columns};
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    scan_rows(
        team, p.lengths.rows, p.offsets, [&](int row) { return load(row).columns; },
        [&](int row, std::int64_t count, std::int64_t before) {
          p.gather_len[row] = static_cast<std::int32_t>(count);
          p.lengths.length_reported(row, p.faults, id);
          if (row < p.lengths.live() && p.query.raw(row) != p.query.count(p.lengths, row))
            p.faults.report(id, row, row_status::query_count_clamped, p.query.raw(row));
          if (count > 0 && before + count > p.capacity)
            p.faults.report(id, row, row_status::capacity_exceeded, before + count);
        });
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end) const {
    const std::int64_t first = sum_before(team, row, [&](int other) { return load(other).columns; });
    const std::int64_t request = p.requests[row];
    if (!p.source.has_request(request)) {
      if (team.rank() == 0) p.faults.report(id, row, row_status::request_out_of_range, request);
      for (std::int64_t x = begin + team.rank(); x < end && first + x < p.capacity; x += team.size())
        p.ids.store(first + x, p.skip);
      return;
    }
    packed_output<slot_converter> out{
        {p.source, {}, p.full_to_swa, p.skip, line.start}, p.ids, first, p.capacity};
    const token_entries in{p.source.line(request), p.source.page_granular ? p.source.page_shift : 0,
                           line.start};
    map_columns(team, in, out, begin, end);
    const bad_entry bad = bad_entry_of(in, out.converter.bad());
    if (bad.found) p.faults.report(id, row, row_status::slot_out_of_range, bad.value);
  }
};

}  // namespace stepgraph
