#pragma once

#include "kernels/speculate/verify_inputs_op.hpp"
#include "kernels/step/verify_prologue.hpp"

namespace stepgraph {

/// Body of `verify_prologue`.
struct verify_prologue_op {
  static constexpr const char* name = "verify_prologue";
  static constexpr int tile_columns = 0;  // vectors only
  verify_prologue_params p;

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    gather_rows(team, p.rows);
    // note: a thread's rows are its own, so what was gathered may be read
    const int live = live_count(&p.rows.header->live_rows, p.rows.rows);
    for (int row = team.rank(); row < live; row += team.size()) gather_drafts(row);
    // note: the table is read behind the barriers of the scan of the rows
    verify_inputs_op{p.verify}.vectors(team);
  }

 private:
  STEPGRAPH_HD void gather_drafts(int row) const {
    const std::int32_t wanted = p.rows.query_counts[row], start = p.rows.token_starts[row];
    const std::int32_t request = p.rows.requests[row];
    const std::int64_t line = row * p.verify.draft_stride;
    auto* const drafts = const_cast<std::int32_t*>(p.verify.drafts) + line;
    auto* const parents = const_cast<std::int32_t*>(p.verify.parents);
    const int last = last_drafted(row);
    // note: a few drafts are read before the first of them is looked at, so that one latency covers them
    constexpr int together = 4;
    int node = 1;
    for (bool more = true; more && node < wanted;) {
      std::int32_t staged[together], above[together];
      left_draft own[together];
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        if (node + i >= wanted) continue;
        staged[i] = p.staged_tokens[start + node + i];
        own[i] = drafted(row, request, node + i, last);
        if (parents) above[i] = p.staged_parents[start + node + i];
      }
      std::int32_t ids[together];
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i)
        if (node + i < wanted) ids[i] = token_of(own[i]);
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        if (!more || node >= wanted) continue;
        const std::int32_t id = staged[i] >= 0 ? staged[i] : ids[i];
        if (id < 0) {  // and so there is none after it
          if (own[i].number != 0) report_draft(row, own[i].number);
          more = false;
          continue;
        }
        drafts[node - 1] = id;
        if (p.draft_lines)
          p.draft_lines[line + node - 1] =
              staged[i] >= 0 ? -1 : draft_line(node, row, request, p.rows.rows, p.rows.state.requests);
        if (parents) parents[row * p.verify.parent_stride + node] = above[i];
        ++node;
      }
    }
    if (node < wanted) p.rows.query_counts[row] = node;
  }

  /// What the draft model left for a node: as `chosen_tokens`, but several are read before one is looked at.
  struct left_draft {
    std::int32_t plain;
    std::uint64_t number;
  };
  STEPGRAPH_HD std::int32_t token_of(const left_draft& left) const {
    const std::int32_t id = left.number != 0 ? token_of_ranked(left.number) : left.plain;
    if (!p.drafts.target_ids) return id;
    const bool mapped = left.number != 0 && id >= 0;
    const std::int32_t token = p.drafts.target_ids[mapped ? id : 0];
    return mapped ? token : id;
  }

  /// The last node that the draft model has a draft for; 0 without one.
  STEPGRAPH_HD int last_drafted(int row) const {
    if (!p.drafts.chain || !p.rows.state.first_draft) return 0;
    const std::int32_t steps = p.rows.header->draft_steps, sits_out = p.drafts.seq_lens[row];
    return sits_out < 0 ? 1 : 1 + (steps < p.drafts.max_steps ? steps : p.drafts.max_steps);
  }

  /// What the draft model left for `node`, up to `last`; beyond it a token of -1. Read without a branch.
  STEPGRAPH_HD left_draft drafted(int row, std::int32_t request, int node, int last) const {
    if (last == 0) return {-1, 0};
    const bool later = node > 1 && node <= last;
    const std::int64_t at = later ? (node - 2) * std::int64_t{p.rows.rows} + row : request;
    const auto* const ids = later ? p.drafts.chain : p.rows.state.first_draft;
    const auto* const ranked = later ? p.drafts.ranked : p.rows.state.first_ranked;
    const left_draft read{ids[at], ranked ? ranked[at] : 0};
    return node <= last ? read : left_draft{-1, 0};
  }

  /// A draft that is none because of what its head ranked: a bad draft ends no row.
  STEPGRAPH_HD void report_draft(int row, std::uint64_t number) const {
    fault_sink faults = p.rows.faults;
    faults.row_status = nullptr;
    report_unranked(faults, row, number);
  }
};

}  // namespace stepgraph
