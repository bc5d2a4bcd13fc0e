#pragma once

#include "kernels/sparse/line_driver.hpp"
#include "kernels/sparse/quad_access.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"

namespace stepgraph {

/// What a line of indices and slots is like.
enum class top_k_form {
  plain,   // wide, and nothing is written but slots
  wide,    // an index and its slot lie alike to 16 bytes
  narrow,  // they do not
};

/// Body of `top_k_to_slots`. A line is a token. `shared_lines`: several tokens look up one line of the table;
/// where their indices lie close together the line is read whole, as single entries wanted by many
/// multiprocessors at once come slowly.
template <bool shared_lines, top_k_form form = top_k_form::plain>
struct top_k_to_slots_op_of {
  static constexpr const char* name = "top_k_to_slots";
  static constexpr op_id id = op_id::top_k_to_slots;
  static constexpr bool warp_a_line = false, has_vectors = false;
  static constexpr bool one_line_first = !shared_lines && form == top_k_form::plain;
  // 17 warps: 2,051 indices, too, are one round
  static constexpr int threads = shared_lines ? 256 : one_line_first ? 544 : 512;
  static constexpr int blocks_a_multiprocessor = shared_lines ? 6 : 3;
  static constexpr int room = shared_lines ? 8192 : 0;
  static constexpr int least_blocks = shared_lines ? 4 : 3;  // for which the compiler saves registers
  struct state {
    int live;
  };
  /// A token's lines, and a thread's share of them. Columns [head, end) are moved by fours that begin at `first`
  /// columns past a round's start; the few before and behind them one a thread, this one's at `odd`.
  struct place {
    const std::int32_t* indices;
    std::int32_t* slots;
    std::int32_t head, end, first, odd;
  };
  top_k_to_slots_params p;

  STEPGRAPH_HD int lines() const { return p.tokens; }
  STEPGRAPH_HD int columns() const { return p.topk; }
  template <class Team>
  STEPGRAPH_HD state begin(Team&) const {
    return {one_line_first && Team::size() > 1 ? *p.live_tokens : live_count(p.live_tokens, p.tokens)};
  }

  template <class Team>
  STEPGRAPH_HD void dead(Team& team, int token) const {
    if constexpr (form == top_k_form::plain) return;
    if (team.rank() == 0) {
      if (p.count) p.count[token] = 0;
      if (p.last_plus_one) p.last_plus_one[token] = 0;
    }
    if (p.slots.tail.mode == tail_mode::whole)
      fill_tail(team, p.slots.line(token), 0, static_cast<std::int32_t>(p.slots.columns), p.slots.tail.value);
  }

  template <class Team>
  STEPGRAPH_HD static constexpr bool is_wide() {
    return form != top_k_form::narrow && Team::size() > 6;
  }

  template <class Team>
  STEPGRAPH_HD place place_of(Team& team, int token) const {
    constexpr bool wide = is_wide<Team>();
    place at;
    at.indices = settled(static_cast<const std::int32_t*>(p.indices.data) + token * p.index_stride);
    at.slots = settled(p.slots.line(token));
    const auto words = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(at.indices) >> 2);
    at.head = !wide ? 0 : (-words & 3) < p.topk ? -words & 3 : p.topk;
    at.end = settled(wide ? at.head + ((p.topk - at.head) & ~3) : p.topk);
    at.first = settled(wide ? 4 * team.rank() : team.rank());
    at.odd = settled(team.rank() < at.head ? team.rank() : team.rank() - at.head + at.end);
    return at;
  }

  /// note: a thread has four entries, or twice four, under way, all indices before the first is looked at; wide
  /// ones side by side, and the few that lie before and behind them beside the first, one a thread
  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state&, int token, const place& of) const {
    constexpr std::int32_t size = Team::size(), apart = is_wide<Team>() ? 1 : size;
    constexpr int fours = shared_lines ? 2 : 1;
    constexpr bool wide = is_wide<Team>();
    const std::int32_t line = shared_lines ? p.row_of[token] : token;
    const auto [indices, slots, head, end, from_begin, odd] = of;
    std::int32_t odd_index = -1;
    found seen;
    std::int32_t beyond = -1;
    bool has_line = true;
    std::int32_t begin = head;
    STEPGRAPH_NO_UNROLL
    do {
      const std::int32_t first = begin + from_begin;
      quad index[fours], slot[fours];
      STEPGRAPH_UNROLL
      for (int k = 0; k < fours; ++k) {
        const std::int32_t x = first + 4 * k * size;
        if constexpr (wide) {
          index[k] = load_quad_if(x < end, indices + x);
        } else {
          STEPGRAPH_UNROLL
          for (int i = 0; i < 4; ++i) index[k].v[i] = x + i * size < end ? indices[x + i * size] : -1;
        }
      }
      const bool has_odd = wide && begin == head && odd < p.topk;
      if (has_odd) odd_index = indices[odd];
      // note: not before the indices are under way, too
      has_line = line >= 0 && line < p.table_lines;
      const std::int32_t* const table = settled(p.table + (has_line ? line : 0) * p.table_stride);
      // an index past the table is one unsigned comparison with the negative ones
      const auto columns = static_cast<std::uint32_t>(has_line ? p.table_columns : 0);
      const auto in_table = [&](std::int32_t at) { return static_cast<std::uint32_t>(at) < columns; };
      bool held = false;
      if constexpr (shared_lines && size > 1) {
        std::int32_t furthest = has_odd && in_table(odd_index) ? odd_index : -1;
        STEPGRAPH_UNROLL
        for (int e = 0; e < 4 * fours; ++e)
          if (const std::int32_t at = index[e / 4].v[e % 4]; in_table(at) && at > furthest) furthest = at;
        held = team.hold(table, team.maximum(furthest) + 1, p.table_columns);
      }
      std::int32_t odd_slot = -1;
      const auto look_up = [&](auto entry) {
        STEPGRAPH_UNROLL
        for (int e = 0; e < 4 * fours; ++e) {
          const std::int32_t at = index[e / 4].v[e % 4];
          slot[e / 4].v[e % 4] = in_table(at) ? entry(at) : -1;
        }
        if (has_odd && in_table(odd_index)) odd_slot = entry(odd_index);
      };
      if (held)
        look_up([&](std::int32_t at) { return team.held(at); });
      else
        look_up([&](std::int32_t at) { return table[at]; });
      STEPGRAPH_UNROLL
      for (int k = 0; k < fours; ++k) {
        const std::int32_t x = first + 4 * k * size;
        STEPGRAPH_UNROLL
        for (int i = 0; i < 4; ++i) {
          const std::int32_t at = index[k].v[i];
          if (at >= 0 && !in_table(at)) beyond = at;
          slot[k].v[i] = slot[k].v[i] < 0 ? -1 : slot[k].v[i];
        }
        if constexpr (wide) {
          if (x < end) store_quad(slots + x, slot[k]);
        } else {
          STEPGRAPH_UNROLL
          for (int i = 0; i < 4; ++i)
            if (x + i * apart < end) slots[x + i * apart] = slot[k].v[i];
        }
      }
      if (has_odd) {
        if (odd_index >= 0 && !in_table(odd_index)) beyond = odd_index;
        slots[odd] = odd_slot < 0 ? -1 : odd_slot;
      }
      if constexpr (form != top_k_form::plain) {
        STEPGRAPH_UNROLL
        for (int e = 0; e < 4 * fours; ++e)
          seen.note(first + e / 4 * 4 * size + e % 4 * apart, slot[e / 4].v[e % 4]);
        seen.note(odd, odd_slot);
      }
      begin += 4 * fours * size;
    } while (begin < end);
    if (!has_line || beyond >= 0) [[unlikely]]
      report(token, line, has_line, beyond);
    if constexpr (form == top_k_form::plain) return;
    const std::int32_t written = p.slots.tail.written(p.topk, p.slots.columns);
    if (written > p.topk) fill_tail(team, slots, p.topk, written, p.slots.tail.value);
    if (p.count) {
      const std::int32_t all = team.sum(seen.count);
      if (team.rank() == 0) p.count[token] = all;
    }
    if (p.last_plus_one) {
      const std::int32_t furthest = team.maximum(seen.last);
      if (team.rank() == 0) p.last_plus_one[token] = furthest;
    }
  }

 private:
  STEPGRAPH_COLD void report(int token, std::int32_t line, bool has_line, std::int32_t beyond) const {
    if (has_line)
      p.faults.report(id, token, row_status::top_k_out_of_range, beyond);
    else
      p.faults.report(id, token, row_status::request_out_of_range, line);
  }

  /// What a thread found in a line.
  struct found {
    std::int32_t count = 0, last = 1;
    STEPGRAPH_HD void note(std::int32_t x, std::int32_t slot) {
      if (slot < 0) return;
      ++count;
      last = x + 1 > last ? x + 1 : last;
    }
  };
};

}  // namespace stepgraph
