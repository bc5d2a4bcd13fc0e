#pragma once

#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/line_driver.hpp"
#include "kernels/sparse/quad_access.hpp"

namespace stepgraph {

/// Body of `combine_top_k_and_window`. A line is a token.
///
/// note: what a token needs is read in three steps, each all at once: the live rows and their query starts; its
/// row's numbers and its indices; nothing after that but stores. So a line's indices are read in full, not only
/// those that the row's length lets it have.
template <reuse again>
struct combine_top_k_and_window_op_of {
  static constexpr const char* name = "combine_top_k_and_window";
  static constexpr op_id id = op_id::combine_top_k_and_window;
  static constexpr bool warp_a_line = true;
  static constexpr int kept = 2;  // query starts that a thread keeps
  struct state {
    int live;                  // tokens
    int rows;                  // live
    std::int32_t first;        // query_start_loc[0]
    std::int32_t begun[kept];  // tokens before rows 1 + rank, 1 + rank + size, ...
  };
  combine_top_k_and_window_params p;

  STEPGRAPH_HD int lines() const { return p.tokens; }
  STEPGRAPH_HD static int parts_shift() { return 0; }
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
    if (p.indices.tail.mode == tail_mode::whole)
      fill_columns(team, p.indices.line(token), 0, 1, 0, static_cast<std::int32_t>(p.indices.columns),
                   p.indices.tail.value);
  }

  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state& known, int token, int) const {
    const std::int32_t* const indices =
        static_cast<const std::int32_t*>(p.topk_indices.data) + token * p.topk_stride;
    std::int32_t* const out = p.indices.line(token);
    if (aligned16(out) && aligned16(indices))
      write<true>(team, known, token, indices, out);
    else
      write<false>(team, known, token, indices, out);
    const std::int32_t width = p.padded_width(), written = p.indices.tail.written(width, p.indices.columns);
    if (written > width) fill_columns(team, out, 0, 1, width, written, p.indices.tail.value);
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
      for (int row = 1 + team.rank() + kept * team.size(); row < known.rows; row += team.size())
        begun += before(p.query_start_loc[row], known.first) <= token ? 1 : 0;
      return team.sum(begun);
    }
  }

  /// What the line of a live token holds, by its row's numbers.
  STEPGRAPH_HD content content_of(const state& known, int row, int token, std::int64_t& gathered) const {
    const std::int64_t length = p.lengths.length(row);
    const std::int32_t end = p.query_start_loc[row + 1];
    gathered = p.gather_len[row];
    content has;
    has.compressed_base = p.topk > 0 ? p.compressed_base[row] : 0;
    const std::int32_t swa_base = p.swa_base[row];
    std::int64_t causal = length - before(end, known.first) + token + 1;
    causal = causal < 0 ? 0 : causal > length ? length : causal;
    const std::uint32_t groups = static_cast<std::uint32_t>(causal) / static_cast<std::uint32_t>(p.ratio);
    has.topk = groups < static_cast<std::uint32_t>(p.topk) ? static_cast<std::int32_t>(groups) : p.topk;
    has.window = static_cast<std::int32_t>(causal < p.window ? causal : p.window);
    // where the window begins among the row's gathered tokens
    const std::int64_t begin = causal - has.window - (length - gathered);
    has.missing = begin >= 0 ? 0 : static_cast<std::int32_t>(-begin < has.window ? -begin : has.window);
    has.window_first = static_cast<std::uint32_t>(swa_base) + static_cast<std::uint32_t>(begin);
    return has;
  }

  /// `four`: four columns an access.
  template <bool four, class Team>
  STEPGRAPH_HD void write(Team& team, const state& known, int token, const std::int32_t* indices,
                          std::int32_t* out) const {
    constexpr int in_flight = Team::size() == 1 ? 1 : 4;
    constexpr std::int32_t each = four ? 4 : 1, step = Team::size() * each;
    const std::int32_t width = p.padded_width();
    content has{};
    bool known_content = false;
    for (std::int32_t first = team.rank() * each; first < width; first += step * in_flight) {
      quad index[in_flight];
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        const std::int32_t x = first + k * step;
        index[k] = {{-1, -1, -1, -1}};
        if (four && x + 4 <= p.topk) {
          index[k] = load_quad<again>(indices + x);
        } else {
          STEPGRAPH_UNROLL
          for (int i = 0; i < each; ++i)
            if (x + i < p.topk) index[k].v[i] = indices[x + i];
        }
      }
      if (!known_content) {
        const int row = row_of(team, known, token);
        std::int64_t gathered;
        has = content_of(known, row, token, gathered);
        known_content = true;
        if (team.rank() == 0) {
          p.length[token] = has.topk + has.window;
          if (has.missing > 0) p.faults.report(id, row, row_status::window_not_gathered, gathered);
        }
      }
      STEPGRAPH_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        const std::int32_t x = first + k * step;
        if (x >= width) continue;
        quad value;
        STEPGRAPH_UNROLL
        for (int i = 0; i < each; ++i) value.v[i] = has(x + i, index[k].v[i]);
        if (four)
          store_quad<again>(out + x, value);
        else
          out[x] = value.v[0];
      }
    }
  }
};

using combine_top_k_and_window_op = combine_top_k_and_window_op_of<reuse::both>;

}  // namespace stepgraph
