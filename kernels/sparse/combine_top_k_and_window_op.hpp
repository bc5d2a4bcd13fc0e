#pragma once

#include "kernels/metadata/query_tokens.hpp"
#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/line_driver.hpp"

namespace stepgraph {

/// Body of `combine_top_k_and_window`. A line is a token.
struct combine_top_k_and_window_op {
  static constexpr const char* name = "combine_top_k_and_window";
  static constexpr op_id id = op_id::combine_top_k_and_window;
  static constexpr bool warp_a_line = true;
  struct state {
    int live;            // tokens
    int rows;            // live
    std::int64_t first;  // query_start_loc[0]
  };
  combine_top_k_and_window_params p;

  STEPGRAPH_HD int lines() const { return p.tokens; }
  STEPGRAPH_HD int columns() const { return p.padded_width(); }

  template <class Team>
  STEPGRAPH_HD state begin(Team&) const {
    const std::int64_t first = p.query_start_loc[0];
    const int rows = p.lengths.live();
    const std::int64_t tokens = p.query_start_loc[rows] - first;
    return {static_cast<int>(tokens < 0 ? 0 : tokens < p.tokens ? tokens : p.tokens), rows, first};
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
    if (p.indices.tail.mode == tail_mode::whole)
      fill_columns(team, p.indices.line(token), 0, 1, 0, static_cast<std::int32_t>(p.indices.columns),
                   p.indices.tail.value);
  }

  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state& known, int token) const {
    const int row = row_of(team, known, token);
    const std::int64_t length = p.lengths.length(row);
    const std::int64_t own_end = p.query_start_loc[row + 1];
    const std::int64_t gathered = p.gather_len[row];
    content has;
    has.compressed_base = p.topk > 0 ? p.compressed_base[row] : 0;
    const std::int32_t swa_base = p.swa_base[row];
    std::int64_t causal = length - (own_end - known.first) + token + 1;
    causal = causal < 0 ? 0 : causal > length ? length : causal;
    const std::uint32_t groups = static_cast<std::uint32_t>(causal) / static_cast<std::uint32_t>(p.ratio);
    has.topk = groups < static_cast<std::uint32_t>(p.topk) ? static_cast<std::int32_t>(groups) : p.topk;
    has.window = static_cast<std::int32_t>(causal < p.window ? causal : p.window);
    // where the window begins among the row's gathered tokens
    const std::int64_t begin = causal - has.window - (length - gathered);
    has.missing = begin >= 0 ? 0 : static_cast<std::int32_t>(-begin < has.window ? -begin : has.window);
    has.window_first = static_cast<std::uint32_t>(swa_base) + static_cast<std::uint32_t>(begin);
    if (team.rank() == 0) {
      p.length[token] = has.topk + has.window;
      if (has.missing > 0) p.faults.report(id, row, row_status::window_not_gathered, gathered);
    }
    write(team, token, has);
  }

 private:
  /// A token's line: `topk` compressed indices, then `window` ones of which the first `missing` are -1.
  struct content {
    std::int32_t topk, window, missing;
    std::int32_t compressed_base;
    std::uint32_t window_first;

    /// Column x, whose top-k index, if it has one, is `index`.
    STEPGRAPH_HD std::int32_t operator()(std::int32_t x, std::int32_t index) const {
      const std::int32_t in_window = x - topk;
      // note: sums are unsigned, as an embedder's wild index may not overflow
      if (in_window < 0)
        return index < 0 ? -1
                         : static_cast<std::int32_t>(static_cast<std::uint32_t>(compressed_base) +
                                                     static_cast<std::uint32_t>(index));
      if (in_window < missing || in_window >= window) return -1;
      return static_cast<std::int32_t>(window_first + static_cast<std::uint32_t>(in_window));
    }
  };

  template <class Team>
  STEPGRAPH_HD int row_of(Team& team, const state& known, int token) const {
    if constexpr (Team::size() == 1)
      return find_row_from(known, token);
    else {
      // all starts are read at once: a binary search would wait for one after the other
      std::int32_t begun = 0;
      for (int row = 1 + team.rank(); row < known.rows; row += team.size())
        begun += p.query_start_loc[row] - known.first <= token ? 1 : 0;
      return team.sum(begun);
    }
  }
  STEPGRAPH_HD int find_row_from(const state& known, int token) const {
    return find_row(p.query_start_loc, known.rows, static_cast<int>(token + known.first));
  }

  template <class Team>
  STEPGRAPH_HD void write(Team& team, int token, const content& has) const {
    const std::int32_t* const indices =
        static_cast<const std::int32_t*>(p.topk_indices.data) + token * p.topk_stride;
    std::int32_t* const out = p.indices.line(token);
    const std::int32_t width = p.padded_width(), columns = static_cast<std::int32_t>(p.topk_columns);
    constexpr int in_flight = Team::size() == 1 ? 1 : 4;
    constexpr std::int32_t step = Team::size();
    if (aligned16(out) && aligned16(indices)) {
      for (std::int32_t first = team.rank(); first < width / 4; first += step * in_flight) {
        quad index[in_flight];
        STEPGRAPH_UNROLL
        for (int k = 0; k < in_flight; ++k) {
          const std::int32_t x = 4 * (first + k * step);
          if (x + 4 <= columns && x < has.topk)
            index[k] = *reinterpret_cast<const quad*>(indices + x);
          else
            for (int i = 0; i < 4; ++i) index[k].v[i] = x + i < has.topk ? indices[x + i] : -1;
        }
        STEPGRAPH_UNROLL
        for (int k = 0; k < in_flight; ++k) {
          const std::int32_t x = 4 * (first + k * step);
          if (x >= width) continue;
          quad value;
          for (int i = 0; i < 4; ++i) value.v[i] = has(x + i, index[k].v[i]);
          *reinterpret_cast<quad*>(out + x) = value;
        }
      }
    } else {
      for (std::int32_t first = team.rank(); first < width; first += step * in_flight) {
        std::int32_t index[in_flight];
        STEPGRAPH_UNROLL
        for (int k = 0; k < in_flight; ++k) {
          const std::int32_t x = first + k * step;
          index[k] = x < has.topk ? indices[x] : -1;
        }
        STEPGRAPH_UNROLL
        for (int k = 0; k < in_flight; ++k) {
          const std::int32_t x = first + k * step;
          if (x < width) out[x] = has(x, index[k]);
        }
      }
    }
    const std::int32_t written = p.indices.tail.written(width, p.indices.columns);
    if (written > width) fill_columns(team, out, 0, 1, width, written, p.indices.tail.value);
  }
};

}  // namespace stepgraph
