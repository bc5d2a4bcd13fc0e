#pragma once

#include <bit>

#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/line_driver.hpp"
#include "kernels/sparse/quad_access.hpp"

namespace stepgraph {

/// Body of `combine_top_k_and_window`. A line is a token.
///
/// note: what a token needs is read in two steps, each all at once: the live rows and their query starts; its
/// row's numbers and its indices; nothing after that but stores. So a line's indices are read in full, not only
/// those that the row's length lets it have.
/// `wide`: all lines allow accesses of 16 bytes; a lane has `quads` of them under way.
template <bool wide, int quads = 5>
struct combine_top_k_and_window_op_of {
  static constexpr const char* name = "combine_top_k_and_window";
  static constexpr op_id id = op_id::combine_top_k_and_window;
  static constexpr bool warp_a_line = true, has_vectors = true;
  static constexpr int threads = 128, blocks_a_multiprocessor = 16, least_blocks = 8;
  static constexpr int kept = 2;  // query starts that a thread keeps
  struct state {
    int live;                  // tokens
    int rows;                  // live
    std::int32_t first;        // query_start_loc[0]
    std::int32_t begun[kept];  // tokens before rows 1 + rank, 1 + rank + size, ...
  };
  struct place {
    const std::int32_t* indices;
    std::int32_t* out;
  };
  combine_top_k_and_window_params p;
  int ratio_shift;  // log2 of the ratio, or -1: a division takes as long as a load

  static combine_top_k_and_window_op_of with(const combine_top_k_and_window_params& params) {
    const auto ratio = static_cast<unsigned>(params.ratio);
    return {params, std::has_single_bit(ratio) ? std::countr_zero(ratio) : -1};
  }

  STEPGRAPH_HD int lines() const { return p.tokens; }
  STEPGRAPH_HD int columns() const { return p.padded_width(); }

  template <class Team>
  STEPGRAPH_HD state begin(Team& team) const {
    state out;
    out.first = p.query_start_loc[0];
    STEPGRAPH_UNROLL
    for (int k = 0; k < kept; ++k) {
      const int row = 1 + team.rank() + k * team.size();
      out.begun[k] = p.query_start_loc[row < p.lengths.rows ? row : p.lengths.rows];
    }
    out.rows = p.lengths.live();
    std::int32_t tokens = 0;
    if (out.rows == 0 || out.rows > kept * team.size()) {
      tokens = before(p.query_start_loc[out.rows], out.first);
    } else {
      STEPGRAPH_UNROLL
      for (int k = 0; k < kept; ++k)
        if (1 + team.rank() + k * team.size() == out.rows) tokens = before(out.begun[k], out.first);
      tokens = team.sum(tokens);
    }
    STEPGRAPH_UNROLL
    for (int k = 0; k < kept; ++k) out.begun[k] = before(out.begun[k], out.first);
    out.live = tokens < 0 ? 0 : tokens < p.tokens ? tokens : p.tokens;
    return out;
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int rows = p.lengths.live();
    const std::int64_t first = p.query_start_loc[0];
    for (int row = team.rank(); row < rows; row += team.size()) {
      p.lengths.length_reported(row, p.faults, id);
      const std::int64_t end = p.query_start_loc[row + 1] - first,
                         count = end + first - p.query_start_loc[row];
      if (count < 0 || (count > 0 && end > p.tokens))
        p.faults.report(id, row, row_status::query_count_clamped, count);
    }
  }

  template <class Team>
  STEPGRAPH_HD void dead(Team& team, int token) const {
    if (team.rank() == 0) p.length[token] = 0;
    if (p.indices.tail.mode == tail_mode::whole) [[unlikely]]
      fill_tail(team, p.indices.line(token), 0, static_cast<std::int32_t>(p.indices.columns),
                p.indices.tail.value);
  }

  template <class Team>
  STEPGRAPH_HD place place_of(Team&, int token) const {
    return {settled(static_cast<const std::int32_t*>(p.topk_indices.data) + token * p.topk_stride),
            settled(p.indices.line(token))};
  }

  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state& known, int token, const place& at) const {
    const auto [indices, out] = at;
    const std::int32_t width = p.padded_width();
    if constexpr (wide && Team::size() > 1) {
      content has;
      bool known_content = false;
      STEPGRAPH_NO_UNROLL
      for (std::int32_t x = team.rank() * 4; x < width; x += 128 * quads) {
        quad index[quads];
        load(index, indices, x);
        if (!known_content) {
          has = content_of(team, known, numbers_of(row_of(team, known, token)), token);
          known_content = true;
        }
        store(has, index, out, x, width, token < p.kept);
      }
    } else {
      const content has = content_of(team, known, numbers_of(row_of(team, known, token)), token);
      constexpr std::int32_t size = Team::size();
      STEPGRAPH_NO_UNROLL
      for (std::int32_t x = team.rank(); x < width; x += 4 * size) {
        std::int32_t index[4];
        STEPGRAPH_UNROLL
        for (int i = 0; i < 4; ++i) index[i] = x + i * size < p.topk ? indices[x + i * size] : -1;
        STEPGRAPH_UNROLL
        for (int i = 0; i < 4; ++i)
          if (x + i * size < width) out[x + i * size] = has(x + i * size, index[i]);
      }
    }
    if (p.indices.tail.mode != tail_mode::none) [[unlikely]]
      tail(team.rank(), team.size(), out);
  }

 private:
  /// A token's line: `topk` compressed indices, then a window up to `end`, whose columns before `window_from`
  /// are -1.
  struct content {
    std::int32_t topk, window_from, end;
    std::uint32_t compressed_base, window_base;

    /// Column x, whose top-k index, if it has one, is `index`. Sums are unsigned, as an embedder's wild index may
    /// not overflow.
    STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t index) const {
      const std::int32_t compressed =
          index < 0 ? -1 : static_cast<std::int32_t>(compressed_base + static_cast<std::uint32_t>(index));
      const std::int32_t of_window =
          x >= window_from && x < end ? static_cast<std::int32_t>(window_base + static_cast<std::uint32_t>(x))
                                      : -1;
      return x < topk ? compressed : of_window;
    }
  };

  /// The top-k indices of columns [x, x + 4), [x + 128, x + 132), ... of a warp's lane; -1 past the last.
  STEPGRAPH_HD void load(quad (&index)[quads], const std::int32_t* indices, std::int32_t x) const {
    STEPGRAPH_UNROLL
    for (int k = 0; k < quads; ++k)
      index[k] = load_quad_if<reuse::neither>(x + 128 * k < p.topk, indices + x + 128 * k);
  }
  STEPGRAPH_HD static void store(const content& has, const quad (&index)[quads], std::int32_t* out,
                                 std::int32_t x, std::int32_t width, bool stays) {
    STEPGRAPH_UNROLL
    for (int k = 0; k < quads; ++k) {
      const std::int32_t at = x + 128 * k;
      if (at >= width) continue;
      const quad value{{has(at, index[k].v[0]), has(at + 1, index[k].v[1]), has(at + 2, index[k].v[2]),
                        has(at + 3, index[k].v[3])}};
      store_quad_if_stays(stays, out + at, value);
    }
  }

  STEPGRAPH_COLD void tail(int rank, int size, std::int32_t* out) const {
    const std::int32_t written = p.indices.tail.written(p.padded_width(), p.indices.columns);
    for (std::int32_t x = p.padded_width() + rank; x < written; x += size) out[x] = p.indices.tail.value;
  }
  STEPGRAPH_COLD void report(int row, std::int32_t gathered) const {
    p.faults.report(id, row, row_status::window_not_gathered, gathered);
  }

  /// `start` as tokens after the first; wild ones wrap.
  STEPGRAPH_HD static std::int32_t before(std::int32_t start, std::int32_t first) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(start) - static_cast<std::uint32_t>(first));
  }

  template <class Team>
  STEPGRAPH_HD int row_of(Team& team, const state& known, int token) const {
    if constexpr (Team::size() == 1) {
      int low = 0, high = known.rows - 1;
      while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (before(p.query_start_loc[middle], known.first) <= token)
          low = middle;
        else
          high = middle - 1;
      }
      return low;
    } else {
      // all starts are compared at once: a binary search would wait for one after the other
      std::int32_t begun = 0;
      STEPGRAPH_UNROLL
      for (int k = 0; k < kept; ++k)
        begun += 1 + team.rank() + k * team.size() < known.rows && known.begun[k] <= token ? 1 : 0;
      STEPGRAPH_NO_UNROLL
      for (int row = 1 + team.rank() + kept * team.size(); row < known.rows; row += team.size())
        begun += before(p.query_start_loc[row], known.first) <= token ? 1 : 0;
      return team.sum(begun);
    }
  }

  /// A row's numbers as they are read: nothing is made of them before a token's indices are under way, too.
  struct row_numbers {
    int row;
    std::int32_t end, gathered, swa_base, compressed_base;
    std::int64_t length;
  };
  STEPGRAPH_HD row_numbers numbers_of(int row) const {
    row_numbers of;
    of.row = row;
    of.end = p.query_start_loc[row + 1];
    of.gathered = p.gather_len[row];
    of.swa_base = p.swa_base[row];
    of.compressed_base = p.topk > 0 ? p.compressed_base[row] : 0;
    of.length = p.lengths.length(row);
    return of;
  }

  /// What the line of a live token holds.
  template <class Team>
  STEPGRAPH_HD content content_of(Team& team, const state& known, const row_numbers& of, int token) const {
    const std::int64_t length = of.length;
    std::int64_t causal = length - before(of.end, known.first) + token + 1;
    causal = causal < 0 ? 0 : causal > length ? length : causal;
    const auto seen = static_cast<std::uint32_t>(causal);
    const std::uint32_t groups =
        ratio_shift >= 0 ? seen >> ratio_shift : seen / static_cast<std::uint32_t>(p.ratio);
    const std::int32_t topk =
        groups < static_cast<std::uint32_t>(p.topk) ? static_cast<std::int32_t>(groups) : p.topk;
    const auto window = static_cast<std::int32_t>(causal < p.window ? causal : p.window);
    // where the window begins among the row's gathered tokens
    const std::int64_t begin = causal - window - (length - of.gathered);
    const std::int32_t missing =
        begin >= 0 ? 0 : static_cast<std::int32_t>(-begin < window ? -begin : window);
    if (team.rank() == 0) {
      p.length[token] = topk + window;
      if (missing > 0) [[unlikely]]
        report(of.row, of.gathered);
    }
    return {.topk = topk,
            .window_from = topk + missing,
            .end = topk + window,
            .compressed_base = static_cast<std::uint32_t>(of.compressed_base),
            .window_base = static_cast<std::uint32_t>(of.swa_base) + static_cast<std::uint32_t>(begin) -
                           static_cast<std::uint32_t>(topk)};
  }
};

using combine_top_k_and_window_op = combine_top_k_and_window_op_of<true>;
using narrow_combine_top_k_and_window_op = combine_top_k_and_window_op_of<false>;

}  // namespace stepgraph
