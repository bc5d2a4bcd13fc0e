#pragma once

#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `decode_metadata`; see the parameters for what it writes.
struct decode_metadata_op {
  static constexpr const char* name = "decode_metadata";
  static constexpr int tile_columns = 4096;
  decode_metadata_params p;

  STEPGRAPH_HD int rows() const { return p.lengths.rows; }

  STEPGRAPH_HD std::int64_t live_columns(int row) const {
    return p.page_table ? pages_of(p.lengths.length(row), p.source.page_shift) : 0;
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    std::int32_t before = 0;
    if (team.rank() == 0 && p.cu_seqlens_k) p.cu_seqlens_k[0] = 0;
    for (int base = 0; base < rows(); base += team.size()) {
      const int row = base + team.rank();
      const auto length = static_cast<std::int32_t>(
          row < rows() ? p.lengths.length_reported(row, p.faults, op_id::decode_metadata) : 0);
      const auto sum = team.exclusive_sum(length);
      if (row < rows()) {
        p.cache_seqlens[row] = length;
        if (p.cu_seqlens_k) p.cu_seqlens_k[row + 1] = before + sum.before + length;
      }
      before += sum.total;
    }
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, std::int64_t begin, std::int64_t end) const {
    std::int32_t* const out = p.page_table + row * p.page_table_stride;
    const std::int64_t request = p.requests[row];
    if (!p.source.has_request(request)) {
      p.faults.report(op_id::decode_metadata, row, row_status::request_out_of_range, request);
      for (std::int64_t column = begin + team.rank(); column < end; column += team.size())
        out[column] = p.skip;
      return;
    }
    // note: several loads in flight before the first store
    constexpr int in_flight = 4;
    const std::int64_t step = team.size();
    for (std::int64_t column = begin + team.rank(); column < end; column += step * in_flight) {
      std::int64_t page[in_flight];
      STEPGRAPH_UNROLL
      for (int i = 0; i < in_flight; ++i)
        page[i] = column + i * step < end ? p.source.page(request, column + i * step) : 0;
      STEPGRAPH_UNROLL
      for (int i = 0; i < in_flight; ++i) {
        if (column + i * step >= end) break;
        if (page[i] < 0)
          p.faults.report(op_id::decode_metadata, row, row_status::slot_out_of_range, column + i * step);
        out[column + i * step] = page[i] < 0 ? p.skip : static_cast<std::int32_t>(page[i]);
      }
    }
  }
};

}  // namespace stepgraph
