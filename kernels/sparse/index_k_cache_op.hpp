#pragma once

#include <type_traits>

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
  static constexpr bool warp_a_line = true, has_vectors = false;
  static constexpr int threads = 128, blocks_a_multiprocessor = 32, least_blocks = 8;
  static constexpr int tokens_a_line = 4;
  struct state {
    int live;  // lines
    int tokens;
  };
  struct place {};
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
  STEPGRAPH_HD void dead(Team&, int) const {}

  template <class Team>
  STEPGRAPH_HD static place place_of(Team&, int) {
    return {};
  }

  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state& known, int index, const place&) const {
    const int first = index * tokens_a_line;
    const int count = known.tokens - first < tokens_a_line ? known.tokens - first : tokens_a_line;
    if (moves_wide(p.cache) && aligned16(p.keys) && (p.key_stride & 15) == 0)
      store_tokens<true>(team, first, count);
    else
      store_tokens<false>(team, first, count);
  }

 private:
  /// note: a key's piece, its scale and its slot are all under way before one of them is looked at
  template <bool wide, class Team>
  STEPGRAPH_HD void store_tokens(Team& team, int first, int count) const {
    STEPGRAPH_NO_UNROLL
    for (int i = team.rank(); i < count * key_piece::a_key; i += team.size()) {
      const int token = first + i / key_piece::a_key, piece = i % key_piece::a_key;
      const std::int32_t byte = piece * key_piece::bytes;
      const quad key = key_piece::load<wide>(p.keys + token * p.key_stride + byte);
      // bits, so that no NaN is made quiet on its way
      const std::uint32_t scale = piece == 0 ? reinterpret_cast<const std::uint32_t*>(p.scales)[token] : 0;
      const std::int64_t slot = p.loc[token];
      if (slot < 0) continue;
      if (slot >= p.cache.slots()) {
        if (piece == 0) p.faults.report(id, token, row_status::slot_out_of_range, slot);
        continue;
      }
      const std::int64_t page = slot >> p.cache.page_shift,
                         in_page = slot & ((std::int64_t{1} << p.cache.page_shift) - 1);
      key_piece::store<wide>(p.cache.data + p.cache.key_at(page, in_page) + byte, key);
      if (piece == 0)
        *reinterpret_cast<std::uint32_t*>(p.cache.data + p.cache.scale_at(page, in_page)) = scale;
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
    if (first >= p.capacity) return;  // so that packed rows fit in 32 bits
    const auto from = static_cast<std::int32_t>(first);
    const auto last = static_cast<std::int32_t>(first + end < p.capacity ? first + end : p.capacity);
    if (last - from <= begin) return;
    constexpr int in_flight = Team::size() == 1 ? key_piece::a_key : 4;
    if (moves_wide(p.cache))
      move<in_flight, true>(team, from + begin, last, one_row{row, from});
    else
      move<in_flight, false>(team, from + begin, last, one_row{row, from});
  }

  /// Which token of which row a packed row is.
  struct place {
    int row;
    std::int32_t token;
  };

  /// The place of the packed rows of one row, which begin at `first`.
  struct one_row {
    int row;
    std::int32_t first;
    STEPGRAPH_HD place operator()(std::int32_t packed) const { return {row, packed - first}; }
  };

  /// Writes packed rows [begin, end); `where(packed row)` is its place. All threads of the team ask it together,
  /// for rows that ascend. Keys and scales of a batch are under way together: in_flight pieces of a thread.
  template <int in_flight, bool wide, reuse again = reuse::both, class Team, class Where>
  STEPGRAPH_HD void move(Team& team, std::int32_t begin, std::int32_t end, Where where) const {
    bad_page bad{-1, 0};
    constexpr int tokens = Team::size() * in_flight / key_piece::a_key;  // of a batch
    static_assert(tokens > 0, "a batch moves whole keys");
    while (begin < end) {
      move_batch<in_flight, wide, again>(team, begin, end, where, bad);
      begin = end - begin > tokens ? begin + tokens : end;
    }
    if (bad.row >= 0) report(bad);
  }

  /// Page table entry of a token, not looked at.
  STEPGRAPH_HD std::int32_t entry_of(const place& of) const {
    return p.page_table[of.row * p.page_table_stride + (of.token >> p.cache.page_shift)];
  }
  /// First bytes of the key and of the scale of a token that lies in `page`.
  STEPGRAPH_HD std::int64_t key_byte(std::int32_t page, std::int32_t token) const {
    return p.cache.key_at(page, in_page(token));
  }
  STEPGRAPH_HD std::int64_t scale_byte(std::int32_t page, std::int32_t token) const {
    return p.cache.scale_at(page, in_page(token));
  }
  /// Page of a token, -1 where it is bad, which is reported if the token `counts`.
  STEPGRAPH_HD std::int32_t page_of(const place& of, bool counts) const {
    const place one[]{of};
    std::int32_t page[1];
    bad_page bad{-1, 0};
    find_pages<false>(one, page, bad);
    if (counts && bad.row >= 0) report(bad);
    return page[0];
  }

 private:
  /// One of the bad pages of a row.
  struct bad_page {
    int row;
    std::int32_t entry;
  };
  STEPGRAPH_COLD void report(const bad_page& bad) const {
    p.faults.report(id, bad.row, row_status::slot_out_of_range, bad.entry);
  }
  template <bool several_rows>
  STEPGRAPH_HD void note(bad_page& bad, const bad_page& found) const {
    if (several_rows && bad.row >= 0 && bad.row != found.row) report(bad);
    bad = found;
  }

  /// Pages of tokens, -1, noted, where one is negative or outside map or cache. All are under way before the
  /// first is looked at.
  template <bool several_rows, int count>
  STEPGRAPH_HD void find_pages(const place (&of)[count], std::int32_t (&page)[count], bad_page& bad) const {
    STEPGRAPH_UNROLL
    for (int k = 0; k < count; ++k) page[k] = entry_of(of[k]);
    if (p.page_map) {
      STEPGRAPH_UNROLL
      for (int k = 0; k < count; ++k) {
        const std::int64_t mapped = p.page_map[page[k]];
        if (!p.page_map.has(page[k]) || mapped >= p.cache.pages)
          note<several_rows>(bad, {of[k].row, page[k]});
        page[k] = mapped < p.cache.pages ? static_cast<std::int32_t>(mapped) : -1;
      }
      return;
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < count; ++k) {
      if (page[k] >= 0 && page[k] < p.cache.pages) continue;
      note<several_rows>(bad, {of[k].row, page[k]});
      page[k] = -1;
    }
  }
  STEPGRAPH_HD std::int32_t in_page(std::int32_t token) const {
    return token & ((1 << p.cache.page_shift) - 1);
  }

  template <int in_flight, bool wide, reuse again, class Team, class Where>
  STEPGRAPH_HD void move_batch(Team& team, std::int32_t begin, std::int32_t end, Where& where,
                               bad_page& bad) const {
    constexpr int step = Team::size(), tokens = step * in_flight / key_piece::a_key;
    constexpr int scales = (tokens + step - 1) / step, all = in_flight + scales;  // of a thread
    const std::int32_t most = end - 1 - begin;
    place of[all];
    Where of_scales = where;
    STEPGRAPH_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const int token = (team.rank() + k * step) / key_piece::a_key;
      of[k] = where(begin + (token < most ? token : most));
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < scales; ++k) {
      const int token = team.rank() + k * step;
      of[in_flight + k] = of_scales(begin + (token < most ? token : most));
    }
    std::int32_t page[all];
    find_pages<!std::is_same_v<Where, one_row>>(of, page, bad);
    quad key[in_flight];
    std::uint32_t scale[scales];
    STEPGRAPH_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const std::int32_t byte = (team.rank() + k * step) % key_piece::a_key * key_piece::bytes;
      key[k] = {};
      if (p.keys && page[k] >= 0)
        key[k] =
            key_piece::load<wide, again>(p.cache.data + p.cache.key_at(page[k], in_page(of[k].token)) + byte);
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < scales; ++k) {
      const int at = in_flight + k;
      scale[k] = 0;
      if (p.scales && page[at] >= 0)
        scale[k] = *reinterpret_cast<const std::uint32_t*>(p.cache.data +
                                                           p.cache.scale_at(page[at], in_page(of[at].token)));
    }
    const bool stays = begin < p.kept;
    STEPGRAPH_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const int piece = team.rank() + k * step;
      if (!p.keys || piece / key_piece::a_key > most) continue;
      std::uint8_t* const to =
          p.keys + std::int64_t{begin} * index_k_cache::key_bytes + piece * key_piece::bytes;
      store_quad_if_stays(stays, to, key[k]);
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < scales; ++k) {
      const int token = team.rank() + k * step;
      if (p.scales && token < tokens && token <= most) p.scales[std::int64_t{begin} + token] = scale[k];
    }
  }
};

}  // namespace stepgraph
