#pragma once

#include "kernels/speculate/commit.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `commit_slots`: a thread a row.
struct commit_slots_op {
  static constexpr const char* name = "commit_slots";
  static constexpr int tile_columns = 0;  // vectors only
  commit_slots_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    for (int row = team.rank(); row < rows(); row += team.size()) permute(row);
  }

 private:
  STEPGRAPH_HD void permute(int row) const {
    const int count = p.verify.count(row);
    if (count == 0) return;
    const std::int32_t* const path = p.path + row * p.path_stride;
    const int kept = p.accept_count[row];
    if (kept <= 0 || kept >= count || path[kept] == kept) return;  // ascending, so the path is its own order
    const std::int64_t base = static_cast<std::int64_t>(p.cache_seqlens[row]) - count;
    if (base < 0) return;  // a fresh or padded row stored nothing to commit
    const std::int64_t request = p.requests[row];
    if (request < 0 || request >= p.request_count) {
      p.faults.report(op_id::commit_slots, row, row_status::request_out_of_range, request);
      return;
    }
    if (base + count > p.columns) {
      p.faults.report(op_id::commit_slots, row, row_status::length_clamped, base + count);
      return;
    }
    std::int32_t* const line = p.table + request * p.table_stride + base;
    const int first = p.verify.cu_seqlens_q[row];
    std::uint64_t on_path = 0;
    int place = 0;
    for (; place <= kept; ++place) {
      const std::int32_t node = path[place];
      if (node < place || node >= count) return;  // not a path
      on_path |= std::uint64_t{1} << node;
      line[place] = static_cast<std::int32_t>(p.slots[first + node]);
    }
    for (int node = 1; node < count; ++node)
      if (!(on_path >> node & 1)) line[place++] = static_cast<std::int32_t>(p.slots[first + node]);
  }
};

/// Body of `commit_kv`: columns are 16-byte pieces of one token's place in all planes.
struct commit_kv_op {
  static constexpr const char* name = "commit_kv";
  static constexpr int tile_columns = 1024;
  commit_kv_params p;

  struct alignas(16) piece {
    std::uint64_t low, high;
  };

  struct line {
    std::int32_t columns;  // 0 where the kept path is its own order
    std::int32_t first, kept, count;
  };

  STEPGRAPH_HD int lines() const { return p.verify.rows; }
  STEPGRAPH_HD int least_columns() const { return tile_columns; }

  STEPGRAPH_HD line load(int row) const {
    const int count = p.verify.count(row);
    if (count == 0) return {};
    const int kept = p.accept_count[row];
    if (kept <= 0 || kept >= count || p.path[row * p.path_stride + kept] == kept) return {};
    return {p.plane_count * p.heads * (p.head_bytes / 16), p.verify.cu_seqlens_q[row], kept, count};
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team&) const {}

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end) const {
    const int first = line.first, kept = line.kept, count = line.count;
    const std::int32_t* const path = p.path + row * p.path_stride;
    const int pieces = p.head_bytes / 16;
    for (std::int64_t column = begin + team.rank(); column < end; column += team.size()) {
      const auto part = static_cast<int>(column % pieces), head = static_cast<int>(column / pieces % p.heads);
      const kv_plane plane = p.planes[column / pieces / p.heads];
      const std::int64_t offset = head * plane.head_stride + part * std::int64_t{16};
      for (int i = 1; i <= kept; ++i) {
        const int place = guard_off("commit-race") ? kept + 1 - i : i;
        const std::int32_t node = path[place];
        if (node == place || node < place || node >= count) continue;
        const std::int64_t from = p.slots[first + node];
        std::int64_t to = p.slots[first + place];
        if (guard_off("shared-prefix")) to = to >> p.page_shift << p.page_shift;
        if (!usable(row, from, column) || !usable(row, to, column)) continue;
        *at(plane, to, offset) = *at(plane, from, offset);
      }
    }
  }

 private:
  /// False for the sink, in silence, and for what is outside the pool, reported once a row.
  STEPGRAPH_HD bool usable(int row, std::int64_t slot, std::int64_t column) const {
    if (slot >= std::int64_t{1} << p.page_shift && slot >> p.page_shift < p.pool_pages) return true;
    const bool sink = slot >= -1 && slot < std::int64_t{1} << p.page_shift;
    if (!sink && column == 0) p.faults.report(op_id::commit_kv, row, row_status::slot_out_of_range, slot);
    return false;
  }

  STEPGRAPH_HD piece* at(const kv_plane& plane, std::int64_t slot, std::int64_t offset) const {
    const std::int64_t page = slot >> p.page_shift, in_page = slot & ((std::int64_t{1} << p.page_shift) - 1);
    return reinterpret_cast<piece*>(static_cast<char*>(plane.data) + page * plane.page_stride +
                                    in_page * plane.token_stride + offset);
  }
};

}  // namespace stepgraph
