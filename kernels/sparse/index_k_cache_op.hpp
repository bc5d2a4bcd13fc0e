#pragma once

#include "kernels/columns.hpp"
#include "kernels/metadata/row_vectors.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "kernels/sparse/line_driver.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// A key is moved in pieces of 16 bytes; `wide`: by one access each, else by four.
struct key_piece {
  static constexpr std::int32_t bytes = 16;
  static constexpr std::int32_t a_key = index_k_cache::key_bytes / bytes;

  template <bool wide>
  STEPGRAPH_HD static quad load(const std::uint8_t* from) {
    if constexpr (wide) return *reinterpret_cast<const quad*>(from);
    const auto* const words = reinterpret_cast<const std::int32_t*>(from);
    return {{words[0], words[1], words[2], words[3]}};
  }
  template <bool wide>
  STEPGRAPH_HD static void store(std::uint8_t* to, const quad& value) {
    if constexpr (wide) {
      *reinterpret_cast<quad*>(to) = value;
    } else {
      auto* const words = reinterpret_cast<std::int32_t*>(to);
      for (int i = 0; i < 4; ++i) words[i] = value.v[i];
    }
  }
};

STEPGRAPH_HD bool moves_wide(const index_k_cache& cache) {
  return aligned16(cache.data) && (cache.page_stride & 15) == 0;
}

/// Body of `set_k_and_s`. A line is a few tokens.
struct set_k_and_s_op {
  static constexpr const char* name = "set_k_and_s";
  static constexpr op_id id = op_id::set_k_and_s;
  static constexpr bool warp_a_line = true;
  static constexpr int tokens_a_line = 16;
  struct state {
    int live;  // lines
    int tokens;
  };
  set_k_and_s_params p;

  STEPGRAPH_HD static int lines_of(int tokens) { return (tokens + tokens_a_line - 1) / tokens_a_line; }
  STEPGRAPH_HD int lines() const { return lines_of(p.tokens); }
  STEPGRAPH_HD static int columns() { return tokens_a_line * index_k_cache::key_bytes / 4; }
  template <class Team>
  STEPGRAPH_HD state begin(Team&) const {
    const int tokens = live_count(p.live_tokens, p.tokens);
    return {lines_of(tokens), tokens};
  }
  template <class Team>
  STEPGRAPH_HD void vectors(Team&) const {}
  template <class Team>
  STEPGRAPH_HD void dead(Team&, int) const {}

  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state& known, int index) const {
    const int first = index * tokens_a_line;
    const int count = known.tokens - first < tokens_a_line ? known.tokens - first : tokens_a_line;
    if (moves_wide(p.cache) && aligned16(p.keys) && (p.key_stride & 15) == 0)
      move_keys<true>(team, first, count);
    else
      move_keys<false>(team, first, count);
    for (int i = team.rank(); i < count; i += team.size()) {
      const std::int64_t slot = p.loc[first + i];
      if (slot >= p.cache.slots()) p.faults.report(id, first + i, row_status::slot_out_of_range, slot);
      if (slot < 0 || slot >= p.cache.slots()) continue;
      // note: bits, so that no NaN is made quiet on its way
      *reinterpret_cast<std::uint32_t*>(p.cache.data + p.cache.scale_at(page(slot), in_page(slot))) =
          reinterpret_cast<const std::uint32_t*>(p.scales)[first + i];
    }
  }

 private:
  STEPGRAPH_HD std::int64_t page(std::int64_t slot) const { return slot >> p.cache.page_shift; }
  STEPGRAPH_HD std::int64_t in_page(std::int64_t slot) const {
    return slot & ((std::int64_t{1} << p.cache.page_shift) - 1);
  }

  template <bool wide, class Team>
  STEPGRAPH_HD void move_keys(Team& team, int first_token, int count) const {
    constexpr int in_flight = Team::size() == 1 ? 1 : 4;
    constexpr int step = Team::size();
    for (int first = team.rank(); first < count * key_piece::a_key; first += step * in_flight) {
      quad value[in_flight];
      std::int64_t to[in_flight];
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        const int piece = first + k * step;
        to[k] = -1;
        if (piece >= count * key_piece::a_key) continue;
        const std::int64_t token = first_token + piece / key_piece::a_key;
        const std::int32_t byte = piece % key_piece::a_key * key_piece::bytes;
        const std::int64_t slot = p.loc[token];
        if (slot < 0 || slot >= p.cache.slots()) continue;
        to[k] = p.cache.key_at(page(slot), in_page(slot)) + byte;
        value[k] = key_piece::load<wide>(p.keys + token * p.key_stride + byte);
      }
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k)
        if (to[k] >= 0) key_piece::store<wide>(p.cache.data + to[k], value[k]);
    }
  }
};

/// Body of `get_k_and_s`. A line is a row, a column one of its tokens.
struct get_k_and_s_op {
  static constexpr const char* name = "get_k_and_s";
  static constexpr op_id id = op_id::get_k_and_s;
  static constexpr int tile_columns = 128;
  struct line {
    std::int32_t columns;
  };
  get_k_and_s_params p;

  STEPGRAPH_HD static constexpr int least_columns() { return 128; }
  STEPGRAPH_HD int lines() const { return p.lengths.rows; }
  STEPGRAPH_HD line load(int row) const { return {static_cast<std::int32_t>(p.lengths.length(row))}; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    scan_rows(
        team, p.lengths.rows, p.cu_seqlens_k, [&](int row) { return load(row).columns; },
        [&](int row, std::int64_t count, std::int64_t before) { row_reports(row, count, before); });
  }

  STEPGRAPH_HD void row_reports(int row, std::int64_t count, std::int64_t before) const {
    p.lengths.length_reported(row, p.faults, id);
    if (count > 0 && before + count > p.capacity)
      p.faults.report(id, row, row_status::capacity_exceeded, before + count);
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line&, std::int32_t begin, std::int32_t end) const {
    const std::int64_t first = sum_before(team, row, [&](int other) { return load(other).columns; });
    const std::int64_t last = first + end < p.capacity ? first + end : p.capacity;
    move<Team::size() == 1 ? 1 : 4>(team, first + begin, last, one_row{row, first});
  }

  /// Which token of which row a packed row is.
  struct place {
    int row;
    std::int64_t token;
  };

  /// Writes packed rows [begin, end); `where(packed row)` is its place, asked in ascending order.
  template <int in_flight, class Team, class Where>
  STEPGRAPH_HD void move(Team& team, std::int64_t begin, std::int64_t end, const Where& where) const {
    if (begin >= end) return;
    bad_page bad{-1, 0};
    if (p.keys && moves_wide(p.cache))
      move_keys<in_flight, true>(team, begin, end, where, bad);
    else if (p.keys)
      move_keys<in_flight, false>(team, begin, end, where, bad);
    if (p.scales) move_scales(team, begin, end, where, bad);
    if (bad.row >= 0) p.faults.report(id, bad.row, row_status::slot_out_of_range, bad.page);
  }

 private:
  struct one_row {
    int row;
    std::int64_t first;
    STEPGRAPH_HD place operator()(std::int64_t packed) const { return {row, packed - first}; }
  };
  struct bad_page {
    int row;
    std::int64_t page;
  };

  /// Page of a token, or -1, noted, where it is negative or outside map or cache.
  STEPGRAPH_HD std::int64_t page_of(const place& of, bad_page& bad) const {
    const std::int64_t entry = p.page_table[of.row * p.page_table_stride + (of.token >> p.cache.page_shift)];
    const std::int64_t page = p.page_map ? p.page_map[entry] : entry;
    if (page >= 0 && page < p.cache.pages) return page;
    if (!p.page_map || !p.page_map.has(entry) || page >= 0) bad = {of.row, entry};
    return -1;
  }
  STEPGRAPH_HD std::int64_t in_page(std::int64_t token) const {
    return token & ((std::int64_t{1} << p.cache.page_shift) - 1);
  }

  template <int in_flight, bool wide, class Team, class Where>
  STEPGRAPH_HD void move_keys(Team& team, std::int64_t begin, std::int64_t end, Where where,
                              bad_page& bad) const {
    constexpr std::int32_t step = Team::size();
    std::uint8_t* const out = p.keys + begin * index_k_cache::key_bytes;
    const std::int64_t pieces = (end - begin) * key_piece::a_key;
    for (std::int64_t first = team.rank(); first < pieces; first += step * in_flight) {
      std::int64_t from[in_flight];
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        const std::int64_t piece = first + k * step;
        from[k] = -1;
        if (piece >= pieces) continue;
        const place of = where(begin + piece / key_piece::a_key);
        const std::int64_t page = page_of(of, bad);
        if (page >= 0)
          from[k] = p.cache.key_at(page, in_page(of.token)) + piece % key_piece::a_key * key_piece::bytes;
      }
      quad value[in_flight];
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        value[k] = {};
        if (from[k] >= 0) value[k] = key_piece::load<wide>(p.cache.data + from[k]);
      }
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k)
        if (first + k * step < pieces)
          key_piece::store<true>(out + (first + k * step) * key_piece::bytes, value[k]);
    }
  }

  template <class Team, class Where>
  STEPGRAPH_HD void move_scales(Team& team, std::int64_t begin, std::int64_t end, Where where,
                                bad_page& bad) const {
    for (std::int64_t packed = begin + team.rank(); packed < end; packed += team.size()) {
      const place of = where(packed);
      const std::int64_t page = page_of(of, bad);
      p.scales[packed] = page < 0 ? 0
                                  : *reinterpret_cast<const std::uint32_t*>(
                                        p.cache.data + p.cache.scale_at(page, in_page(of.token)));
    }
  }
};

}  // namespace stepgraph
