#pragma once

#include "kernels/metadata/row_vectors.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "kernels/sparse/line_driver.hpp"
#include "kernels/sparse/quad_access.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// A key is moved in pieces of 16 bytes; `wide`: by one access each, else by four.
struct key_piece {
  static constexpr std::int32_t bytes = 16;
  static constexpr std::int32_t a_key = index_k_cache::key_bytes / bytes;

  template <bool wide, reuse again = reuse::both>
  STEPGRAPH_HD static quad load(const std::uint8_t* from) {
    if constexpr (wide) return load_quad<again>(from);
    const auto* const words = reinterpret_cast<const std::int32_t*>(from);
    return {{words[0], words[1], words[2], words[3]}};
  }
  template <bool wide, reuse again = reuse::both>
  STEPGRAPH_HD static void store(std::uint8_t* to, const quad& value) {
    if constexpr (wide) return store_quad<again>(to, value);
    auto* const words = reinterpret_cast<std::int32_t*>(to);
    for (int i = 0; i < 4; ++i) words[i] = value.v[i];
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
  STEPGRAPH_HD static int parts_shift() { return 0; }
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
  STEPGRAPH_HD void line(Team& team, const state& known, int index, int) const {
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
    move<Team::size() == 1 ? key_piece::a_key : 4>(team, first + begin, last, one_row{row, first});
  }

  /// Which token of which row a packed row is.
  struct place {
    int row;
    std::int64_t token;
  };

  /// Writes packed rows [begin, end); `where(packed row)` is its place. All threads of the team ask it together,
  /// for rows that ascend. Keys and scales of a batch are under way together: in_flight pieces of a thread.
  template <int in_flight, reuse again = reuse::both, class Team, class Where>
  STEPGRAPH_HD void move(Team& team, std::int64_t begin, std::int64_t end, Where where) const {
    bad_page bad{-1, 0};
    constexpr int tokens = Team::size() * in_flight / key_piece::a_key;  // of a batch
    static_assert(tokens > 0, "a batch moves whole keys");
    const bool wide = moves_wide(p.cache);
    for (; begin < end; begin += tokens)
      if (wide)
        move_batch<in_flight, true, again>(team, begin, end, where, bad);
      else
        move_batch<in_flight, false, again>(team, begin, end, where, bad);
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

  template <int in_flight, bool wide, reuse again, class Team, class Where>
  STEPGRAPH_HD void move_batch(Team& team, std::int64_t begin, std::int64_t end, Where& where,
                               bad_page& bad) const {
    constexpr int step = Team::size(), tokens = step * in_flight / key_piece::a_key;
    constexpr int scales = (tokens + step - 1) / step;  // of a thread
    const std::int64_t last = end - 1;
    // where keys and scales lie; -1: no page, nothing to load
    std::int64_t key_from[in_flight], scale_from[scales];
    Where of_scales = where;
    STEPGRAPH_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const int piece = team.rank() + k * step;
      const std::int64_t packed = begin + piece / key_piece::a_key;
      const place of = where(packed < last ? packed : last);
      const std::int64_t page = p.keys ? page_of(of, bad) : -1;
      key_from[k] =
          page < 0 ? -1
                   : p.cache.key_at(page, in_page(of.token)) + piece % key_piece::a_key * key_piece::bytes;
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < scales; ++k) {
      const std::int64_t packed = begin + team.rank() + k * step;
      const place of = of_scales(packed < last ? packed : last);
      const std::int64_t page = p.scales ? page_of(of, bad) : -1;
      scale_from[k] = page < 0 ? -1 : p.cache.scale_at(page, in_page(of.token));
    }
    quad key[in_flight];
    std::uint32_t scale[scales];
    STEPGRAPH_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      key[k] = {};
      if (key_from[k] >= 0) key[k] = key_piece::load<wide, again>(p.cache.data + key_from[k]);
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < scales; ++k) {
      scale[k] = 0;
      if (scale_from[k] >= 0)
        scale[k] = *reinterpret_cast<const std::uint32_t*>(p.cache.data + scale_from[k]);
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const int piece = team.rank() + k * step;
      const std::int64_t packed = begin + piece / key_piece::a_key;
      if (p.keys && packed < end)
        key_piece::store<true, again>(
            p.keys + packed * index_k_cache::key_bytes + piece % key_piece::a_key * key_piece::bytes, key[k]);
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < scales; ++k) {
      const std::int64_t packed = begin + team.rank() + k * step;
      if (p.scales && team.rank() + k * step < tokens && packed < end) p.scales[packed] = scale[k];
    }
  }
};

}  // namespace stepgraph
