#pragma once

#include "kernels/sparse/line_driver.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"

namespace stepgraph {

/// Body of `top_k_to_slots`. A line is a token; its parts have `least_part` indices or more, for a
/// multiprocessor looks few scattered entries up at a time, and all should take their share. A line whose
/// entries are counted is one part.
template <int least_part>
struct top_k_to_slots_op_of {
  static constexpr const char* name = "top_k_to_slots";
  static constexpr op_id id = op_id::top_k_to_slots;
  static constexpr bool warp_a_line = false;
  struct state {
    int live;
  };
  top_k_to_slots_params p;

  STEPGRAPH_HD int lines() const { return p.tokens; }
  STEPGRAPH_HD int parts_shift() const {
    int shift = 0;
    while (!p.count && !p.last_plus_one && least_part << (shift + 1) <= p.topk) ++shift;
    return shift;
  }
  STEPGRAPH_HD int columns() const { return p.topk; }
  template <class Team>
  STEPGRAPH_HD state begin(Team&) const {
    return {live_count(p.live_tokens, p.tokens)};
  }
  template <class Team>
  STEPGRAPH_HD void vectors(Team&) const {}

  template <class Team>
  STEPGRAPH_HD void dead(Team& team, int token) const {
    if (team.rank() == 0) {
      if (p.count) p.count[token] = 0;
      if (p.last_plus_one) p.last_plus_one[token] = 0;
    }
    if (p.slots.tail.mode == tail_mode::whole)
      fill_columns(team, p.slots.line(token), 0, 1, 0, static_cast<std::int32_t>(p.slots.columns),
                   p.slots.tail.value);
  }

  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state&, int token, int part) const {
    const std::int32_t line = p.row_of ? p.row_of[token] : token;
    const bool has_line = line >= 0 && line < p.table_lines;
    if (!has_line && team.rank() == 0) p.faults.report(id, token, row_status::request_out_of_range, line);
    const std::int32_t* const indices =
        static_cast<const std::int32_t*>(p.indices.data) + token * p.index_stride;
    const std::int32_t* const table = p.table + (has_line ? line : 0) * p.table_stride;
    // an index past the table, as one unsigned comparison with the negative ones
    const auto columns = static_cast<std::uint32_t>(has_line ? p.table_columns : 0);
    std::int32_t* const slots = p.slots.line(token);
    const int shift = parts_shift();
    const std::int32_t each = (((p.topk + (1 << shift) - 1) >> shift) + 31) & ~31;
    const std::int32_t begin = part * each, end = begin + each < p.topk ? begin + each : p.topk;
    constexpr int in_flight = Team::size() == 1 ? 1 : (at_once + Team::size() - 1) / Team::size();
    constexpr std::int32_t step = Team::size();
    std::int32_t found = 0, last = 1, beyond = -1;
    for (std::int32_t first = begin + team.rank(); first < end; first += step * in_flight) {
      std::int32_t index[in_flight], slot[in_flight];
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) index[k] = first + k * step < end ? indices[first + k * step] : -1;
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        slot[k] = -1;
        if (static_cast<std::uint32_t>(index[k]) < columns) slot[k] = table[index[k]];
      }
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        if (index[k] >= 0 && static_cast<std::uint32_t>(index[k]) >= columns) beyond = index[k];
        const std::int32_t kept = slot[k] < 0 ? -1 : slot[k];
        if (first + k * step < end) slots[first + k * step] = kept;
        if (kept >= 0) {
          ++found;
          last = first + k * step + 1;
        }
      }
    }
    if (beyond >= 0 && has_line) p.faults.report(id, token, row_status::top_k_out_of_range, beyond);
    const std::int32_t written = p.slots.tail.written(p.topk, p.slots.columns);
    if (written > p.topk && part == 0) fill_columns(team, slots, 0, 1, p.topk, written, p.slots.tail.value);
    if (p.count) {
      const std::int32_t all = team.sum(found);
      if (team.rank() == 0) p.count[token] = all;
    }
    if (p.last_plus_one) {
      const std::int32_t furthest = team.maximum(last);
      if (team.rank() == 0) p.last_plus_one[token] = furthest;
    }
  }

  // note: indices that a team reads before it uses one
  static constexpr int at_once = 1024;
};

using top_k_to_slots_op = top_k_to_slots_op_of<512>;

}  // namespace stepgraph
