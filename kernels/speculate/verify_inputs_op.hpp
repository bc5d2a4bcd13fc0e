#pragma once

#include "kernels/metadata/token_inputs_op.hpp"
#include "kernels/speculate/verify_inputs.hpp"

namespace stepgraph {

/// Body of `verify_inputs`.
struct verify_inputs_op {
  static constexpr const char* name = "verify_inputs";
  static constexpr int tile_columns = 0;  // vectors only
  verify_inputs_params p;

  STEPGRAPH_HD int rows() const { return p.inputs.lengths.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = p.inputs.lengths.live();
    if (has_short_rows())
      return short_rows(team, [&](int row, row_nodes& mine) -> std::int32_t {
        if (row >= live) return 0;
        const row_numbers of = read(row);
        read_entries(mine, of);
        mine.id[0] = has(of.request) ? p.last_token[of.request] : 0;
        STEPGRAPH_UNROLL
        for (int j = 1; j < few; ++j)
          if (j < of.asked && j < p.inputs.max_query_count)
            mine.id[j] = p.drafts[row * p.draft_stride + j - 1];
        return count_of(row, of);
      });
    for (int row = team.rank(); row < rows(); row += team.size())
      p.query_counts[row] = row < live ? count_of(row, read(row)) : 0;
    // note: a thread's rows are its own, so the counts may be read; the scan makes them readable to all
    constexpr int searched = 64;
    token_inputs_op{p.inputs}.vectors(team, p.inputs.max_query_count <= searched,
                                      [&](int token, const token_place& at, bool is_live) {
                                        p.token_ids[token] = is_live ? checked_id(at.row, given_id(at)) : 0;
                                        if (p.parents) node_vectors(token, at, is_live);
                                      });
  }

  static constexpr int few = 8;  // tokens of a chain's row that its thread makes by itself
  STEPGRAPH_HD bool has_short_rows() const { return !p.parents && !p.inputs.depth && p.inputs.max_query_count <= few; }

  struct row_nodes : token_inputs_op::row_tokens<few> {
    std::int32_t id[few];  // as given
  };

  /// What the count of a live row depends on.
  struct row_numbers {
    std::int64_t request;
    std::int64_t before;  // tokens before the step
    std::int32_t ended, asked;
    std::int32_t given;  // tokens that its pages can hold
  };

  /// The entries of as many tokens as the row may have.
  STEPGRAPH_HD void read_entries(row_nodes& mine, const row_numbers& of) const {
    const std::int64_t left = capacity(of) - of.before;
    token_inputs_op{p.inputs}.read_entries(mine, of.request, of.before, of.asked < left ? of.asked : left);
  }

  /// The vectors of chains of few tokens. `read(row, mine)` returns E of a captured row, and leaves its nodes.
  template <class Team, class Read>
  STEPGRAPH_HD void short_rows(Team& team, const Read& read) const {
    token_inputs_op{p.inputs}.template few_vectors<row_nodes>(
        team,
        [&](int row, row_nodes& mine) {
          const std::int32_t count = read(row, mine);
          p.query_counts[row] = count;
          // what it had before its tokens is as long as a length allows
          clamp_reported(std::int64_t{mine.base} + count, 0, p.inputs.lengths.cap, p.inputs.faults,
                         token_inputs_op::id, row, row_status::length_clamped);
          return count;
        },
        [&](int token, const row_nodes& of, int j) { p.token_ids[token] = checked_id(of.row, of.id[j]); },
        [&](int token) { p.token_ids[token] = 0; });
  }

  STEPGRAPH_HD std::int32_t count_of(int row, const row_numbers& of) const {
    if (!has(of.request)) {
      p.inputs.faults.report(op_id::verify_inputs, row, row_status::request_out_of_range, of.request);
      return 0;
    }
    if (of.ended != 0) return 0;
    const auto wanted =
        static_cast<std::int32_t>(clamp_reported(of.asked, 0, p.inputs.max_query_count, p.inputs.faults,
                                                 op_id::verify_inputs, row, row_status::query_count_clamped));
    if (wanted == 0) return 0;
    if (of.before >= capacity(of)) {
      p.inputs.faults.report(
          op_id::verify_inputs, row,
          of.before >= p.inputs.lengths.cap ? row_status::length_clamped : row_status::out_of_pages,
          of.before);
      return 0;
    }
    return of.before + wanted > capacity(of) ? static_cast<std::int32_t>(capacity(of) - of.before) : wanted;
  }

 private:
  STEPGRAPH_HD bool has(std::int64_t request) const { return p.inputs.source.has_request(request); }
  STEPGRAPH_HD std::int64_t capacity(const row_numbers& of) const {
    return of.given < p.inputs.lengths.cap ? of.given : p.inputs.lengths.cap;
  }

  // note: all is read before any of it is used, so that one latency covers it
  STEPGRAPH_HD row_numbers read(int row) const {
    row_numbers of{p.inputs.requests[row], p.inputs.lengths.seq_lens[row] + p.inputs.lengths.delta, 0,
                   p.wanted[row], INT32_MAX};
    if (!has(of.request)) return of;
    if (p.finished) of.ended = p.finished[of.request];
    if (p.token_capacity) of.given = p.token_capacity[of.request];
    return of;
  }

  STEPGRAPH_HD std::int32_t given_id(const token_place& at) const {
    return at.number == 0 ? p.last_token[p.inputs.requests[at.row]]
                          : p.drafts[at.row * p.draft_stride + at.number - 1];
  }

  STEPGRAPH_HD std::int32_t checked_id(int row, std::int32_t id) const {
    if (id >= 0 && id < p.vocab_size) return id;
    p.inputs.faults.report(op_id::verify_inputs, row, row_status::token_out_of_range, id);
    return 0;
  }

  /// The parent of a node, moved to a node before it where it is not one.
  STEPGRAPH_HD int parent(int row, int node) const {
    const int given = p.parents[row * p.parent_stride + node];
    return given < 0 ? 0 : given >= node ? node - 1 : given;
  }

  STEPGRAPH_HD void node_vectors(int token, const token_place& at, bool live) const {
    int up = 0, depth = 0;
    std::uint64_t ancestors = 0;
    if (live) {
      const int row = at.row, node = at.number;
      ancestors = std::uint64_t{1} << (guard_off("shape-grid") ? node & 31 : node);
      if (node > 0) {
        up = parent(row, node);
        if (const int given = p.parents[row * p.parent_stride + node]; given != up)
          p.inputs.faults.report(op_id::verify_inputs, row, row_status::not_a_tree, given);
        for (int above = up;; above = parent(row, above)) {
          ancestors |= std::uint64_t{1} << above;
          ++depth;
          if (above == 0) break;
        }
      }
      if (p.inputs.position) {
        const std::int64_t base = p.inputs.lengths.length(row) - p.query_counts[row];
        p.inputs.position[token] = static_cast<std::int32_t>(base + depth > 0 ? base + depth : 0);
      }
    }
    p.parent_of[token] = up;
    if (p.depth) p.depth[token] = depth;
    if (p.ancestors) p.ancestors[token] = ancestors;
  }
};

}  // namespace stepgraph
