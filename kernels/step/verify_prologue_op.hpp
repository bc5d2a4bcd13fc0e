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
    // note: a few drafts are read before the first of them is written, so that one latency covers them
    constexpr int together = 4;
    int node = 1;
    for (bool more = true; more && node < wanted;) {
      std::int32_t staged[together], own[together], above[together];
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        if (node + i >= wanted) continue;
        staged[i] = p.staged_tokens[start + node + i];
        own[i] = drafted(row, request, node + i);
        if (parents) above[i] = p.staged_parents[start + node + i];
      }
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i) {
        if (!more || node >= wanted) continue;
        const std::int32_t id = staged[i] >= 0 ? staged[i] : own[i];
        if (id < 0) {  // and so there is none after it
          report_draft(row, request, node);
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

  /// The draft model's draft for `node`, or -1.
  STEPGRAPH_HD std::int32_t drafted(int row, std::int32_t request, int node) const {
    if (!p.drafts.chain || !p.rows.state.first_draft) return -1;
    if (node == 1) return p.rows.state.first_drafts(p.drafts.target_ids)[request];
    if (!was_drafted(row, node)) return -1;
    return chosen_tokens{p.drafts.chain, p.drafts.ranked, p.drafts.target_ids}[entry(row, node)];
  }
  STEPGRAPH_HD bool was_drafted(int row, int node) const {
    const std::int32_t steps = p.rows.header->draft_steps;
    return node - 1 <= steps && node - 1 <= p.drafts.max_steps && p.drafts.seq_lens[row] >= 0;
  }
  STEPGRAPH_HD std::int64_t entry(int row, int node) const {
    return (node - 2) * std::int64_t{p.rows.rows} + row;
  }

  /// A draft that is none because of what its head ranked: a bad draft ends no row.
  STEPGRAPH_HD void report_draft(int row, std::int32_t request, int node) const {
    const std::uint64_t* const ranked = node == 1 ? p.rows.state.first_ranked : p.drafts.ranked;
    if (!p.drafts.chain || !ranked || (node > 1 && !was_drafted(row, node))) return;
    const std::uint64_t number = ranked[node == 1 ? request : entry(row, node)];
    if (number == 0) return;
    fault_sink faults = p.rows.faults;
    faults.row_status = nullptr;
    report_unranked(faults, row, number);
  }
};

}  // namespace stepgraph
