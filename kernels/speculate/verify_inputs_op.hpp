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
    for (int row = team.rank(); row < rows(); row += team.size())
      p.query_counts[row] = row < live ? count_of(row) : 0;
    // note: a thread's rows are its own, so the counts may be read; the scan makes them readable to all
    constexpr int few = 64;
    token_inputs_op{p.inputs}.vectors(team, p.inputs.max_query_count <= few,
                                      [&](int token, const token_place& at, bool is_live) {
                                        p.token_ids[token] = is_live ? token_id(at) : 0;
                                        if (p.parents) node_vectors(token, at, is_live);
                                      });
  }

 private:
  STEPGRAPH_HD bool has(std::int64_t request) const { return p.inputs.source.has_request(request); }

  STEPGRAPH_HD std::int32_t count_of(int row) const {
    const std::int64_t request = p.inputs.requests[row];
    if (!has(request)) {
      p.inputs.faults.report(op_id::verify_inputs, row, row_status::request_out_of_range, request);
      return 0;
    }
    // note: all is read before any of it is used, so that one latency covers it
    const std::int32_t ended = p.finished ? p.finished[request] : 0, asked = p.wanted[row],
                       given = p.token_capacity ? p.token_capacity[request] : INT32_MAX;
    const std::int64_t before = p.inputs.lengths.seq_lens[row] + p.inputs.lengths.delta;
    if (ended != 0) return 0;
    const auto wanted =
        static_cast<std::int32_t>(clamp_reported(asked, 0, p.inputs.max_query_count, p.inputs.faults,
                                                 op_id::verify_inputs, row, row_status::query_count_clamped));
    if (wanted == 0) return 0;
    const std::int64_t capacity = given < p.inputs.lengths.cap ? given : p.inputs.lengths.cap;
    if (before >= capacity) {
      p.inputs.faults.report(
          op_id::verify_inputs, row,
          before >= p.inputs.lengths.cap ? row_status::length_clamped : row_status::out_of_pages, before);
      return 0;
    }
    return before + wanted > capacity ? static_cast<std::int32_t>(capacity - before) : wanted;
  }

  STEPGRAPH_HD std::int32_t token_id(const token_place& at) const {
    const int row = at.row, node = at.number;
    const std::int32_t id =
        node == 0 ? p.last_token[p.inputs.requests[row]] : p.drafts[row * p.draft_stride + node - 1];
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
