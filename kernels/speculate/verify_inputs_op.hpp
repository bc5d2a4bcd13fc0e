#pragma once

#include "kernels/fault_note.hpp"
#include "kernels/metadata/token_inputs_op.hpp"
#include "kernels/row_lanes.hpp"
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
    if (!has_short_rows()) return long_rows(team);
    short_rows(
        team,
        [&](int row, row_numbers& of, lane_nodes<Team>& mine, fault_note&) {
          if (row >= live) return false;
          of = read(row);
          read_entries(team, of, mine);
          mine.each(team, [&](int node, std::int32_t& id, std::int32_t&) {
            if (node == 0 && has(of.request)) id = p.last_token[of.request];
            if (node > 0 && node < of.asked && node < p.inputs.max_query_count)
              id = p.drafts[row * p.draft_stride + node - 1];
          });
          return true;
        },
        [](int, const row_numbers&) {});
  }

  /// The vectors where rows have many tokens, or are trees.
  template <class Team>
  STEPGRAPH_HD void long_rows(Team& team) const {
    const int live = p.inputs.lengths.live();
    for (int row = team.rank(); row < rows(); row += team.size())
      p.query_counts[row] = row < live ? count_of(row, read(row), p.inputs.faults) : 0;
    // note: a thread's rows are its own, so the counts may be read; the scan makes them readable to all
    constexpr int searched = 64;
    token_inputs_op{p.inputs}.vectors(
        team, p.inputs.max_query_count <= searched, [&](int token, const token_place& at, bool is_live) {
          p.token_ids[token] = is_live ? checked_id(at.row, given_id(at), p.inputs.faults) : 0;
          if (p.parents) node_vectors(token, at, is_live);
        });
  }

  static constexpr int few = 8;  // tokens of a chain's row that its threads make by themselves
  STEPGRAPH_HD bool has_short_rows() const {
    return !p.parents && !p.inputs.depth && p.inputs.max_query_count <= few;
  }

  /// The nodes of a row that one of its threads makes: ids as given, and the entries that name their slots.
  template <class Team>
  struct lane_nodes {
    using lanes = row_lanes<Team>;
    static constexpr int room = few / lanes::count;
    std::int32_t id[room];
    std::int32_t entry[room];  // -1 where there is none

    /// visit(node, id, entry) of each.
    template <class Visit>
    STEPGRAPH_HD void each(const Team& team, const Visit& visit) {
      STEPGRAPH_UNROLL
      for (int i = 0; i < room; ++i) visit(lanes::lane(team) + i * lanes::count, id[i], entry[i]);
    }
  };

  /// What the count of a live row depends on.
  struct row_numbers {
    std::int64_t request;
    std::int64_t before;  // tokens before the step
    std::int32_t ended, asked;
    std::int32_t given;  // tokens that its pages can hold
  };

  /// The entries of as many tokens as the row may have.
  template <class Team>
  STEPGRAPH_HD void read_entries(const Team& team, const row_numbers& of, lane_nodes<Team>& mine) const {
    const std::int64_t left = capacity(of) - of.before;
    const std::int64_t count = of.asked < left ? of.asked : left;
    const page_source& source = p.inputs.source;
    const bool wanted = p.inputs.out_cache_loc && has(of.request);
    mine.each(team, [&](int node, std::int32_t&, std::int32_t& entry) {
      entry = -1;
      if (wanted && node < count && of.before + node >= 0) entry = source.entry(of.request, of.before + node);
    });
  }

  /// The vectors of chains of few tokens, a few threads a row. `read(row, of, mine, faults)` reads a captured row and
  /// the nodes of the thread, and tells whether it is live; what it asks for is the least of what its threads ask for.
  /// `put(row, of)` sees that number. What is known of a row stays with its threads from its first number to its last.
  template <class Team, class Read, class Put>
  STEPGRAPH_HD void short_rows(Team& team, const Read& read, const Put& put) const {
    using lanes = row_lanes<Team>;
    const token_inputs_op tokens{p.inputs};
    const query_tokens query{p.query_counts, false, p.inputs.max_query_count, p.inputs.tokens};
    const bool first_lane = lanes::lane(team) == 0;
    std::int64_t before = 0;
    if (team.rank() == 0) p.inputs.cu_seqlens_q[0] = 0;
    STEPGRAPH_NO_UNROLL
    for (int base = 0; base < rows(); base += lanes::rows) {
      const int row = base + lanes::row(team);
      fault_note faults;  // of the row, where the thread is its first, and of the thread's tokens
      lane_nodes<Team> mine{};
      row_numbers of{};
      const bool live = row < rows() && read(row, of, mine, faults);
      of.asked = lanes::least(of.asked);
      if (live) put(row, of);
      const std::int32_t count = live ? count_of(row, of, faults) : 0;
      const auto sum = team.exclusive_sum(first_lane ? count : 0);
      // of the row's other threads the sum is behind its tokens
      const auto kept = query.kept(before + sum.before - (first_lane ? 0 : count), count);
      before += sum.total;
      if (row >= rows()) continue;
      // what it had before its tokens is as long as a length allows
      const std::int64_t given = of.before + count, cap = p.inputs.lengths.cap,
                         length = given < 0     ? 0
                                  : given > cap ? cap
                                                : given;
      if (length != given) faults.report(token_inputs_op::id, row, row_status::length_clamped, given);
      if (kept.end - kept.first < count)
        faults.report(token_inputs_op::id, row, row_status::query_count_clamped, count);
      if (first_lane) {
        p.query_counts[row] = count;
        p.inputs.cu_seqlens_q[row + 1] = kept.end;
        if (p.inputs.last_row) p.inputs.last_row[row] = kept.end > kept.first ? kept.end - 1 : 0;
      } else {
        faults = {};
      }
      mine.each(team, [&](int node, std::int32_t id, std::int32_t entry) {
        if (kept.first + node >= kept.end) return;
        const std::int64_t position = length - count + node;
        const token_place at{row, node, position >= 0 ? position + 1 : 0};
        tokens.write_token(kept.first + node, at, position, of.request,
                           p.inputs.source.slot_of(entry, position), faults);
        p.token_ids[kept.first + node] = checked_id(row, id, faults);
      });
      faults.tell(p.inputs.faults, row);
    }
    STEPGRAPH_NO_UNROLL
    for (std::int64_t token = before + team.rank(); token < p.inputs.tokens; token += team.size()) {
      tokens.write_token(static_cast<int>(token), {0, 0, 0}, 0, 0, -1);
      p.token_ids[token] = 0;
    }
  }

  template <class Faults>
  STEPGRAPH_HD std::int32_t count_of(int row, const row_numbers& of, Faults& faults) const {
    if (!has(of.request)) {
      faults.report(op_id::verify_inputs, row, row_status::request_out_of_range, of.request);
      return 0;
    }
    if (of.ended != 0) return 0;
    const std::int32_t wanted = of.asked < 0                          ? 0
                                : of.asked > p.inputs.max_query_count ? p.inputs.max_query_count
                                                                      : of.asked;
    if (wanted != of.asked)
      faults.report(op_id::verify_inputs, row, row_status::query_count_clamped, of.asked);
    if (wanted == 0) return 0;
    if (of.before >= capacity(of)) {
      faults.report(op_id::verify_inputs, row,
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

  template <class Faults>
  STEPGRAPH_HD std::int32_t checked_id(int row, std::int32_t id, Faults& faults) const {
    if (id >= 0 && id < p.vocab_size) return id;
    faults.report(op_id::verify_inputs, row, row_status::token_out_of_range, id);
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
