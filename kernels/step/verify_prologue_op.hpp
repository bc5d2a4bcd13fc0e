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
    const verify_inputs_op inputs{p.verify};
    if (__builtin_expect(inputs.has_short_rows(), 1)) return short_rows(team, inputs);
    gather_rows(
        team, p.rows, [](int, std::int32_t) {},
        [&](int row, const gathered_row& of) {
          if (!of.live) return;
          constexpr int together = 4;
          const own_row own = read_own(row);
          int node = 1;
          for (bool more = true; more && node < of.count;) {
            const int first = node;
            std::int32_t ids[together];
            auto read = read_nodes<together>(row, of.request, own, first, 1, of.count);
            if (of.joins) forget_first(read, first, 1);  // it was another's
            node = take_nodes(row, of, read, first, 1, ids);
            more = node == first + together;
            if (!more) report_draft(row, read, first, 1, node);
          }
          if (node < of.count) p.rows.query_counts[row] = node;
        });
    // note: the table is read behind the barriers of the scan of the rows
    inputs.long_rows(team);
  }

 private:
  /// A few nodes of a row, read before the first of them is looked at, so that one latency covers them.
  template <int together>
  struct read_drafts {
    std::int32_t staged[together], above[together];
    chosen_tokens::left own[together];  // as the draft model left them ...
    bool drafted[together];             // ... where it has left one
  };

  /// Where a row's nodes come from, whether it is live or not.
  struct own_row {
    std::int32_t start;     // of its staged tokens
    std::int32_t sits_out;  // negative: it sat the draft decodes out
    std::int32_t steps;     // draft decodes of the round
  };
  STEPGRAPH_HD own_row read_own(int row) const {
    return {fetch_or_zero(p.rows.token_starts + row),
            fetch_or_zero(p.drafts.chain ? p.drafts.seq_lens + row : nullptr),
            fetch_or_zero(&p.rows.header->draft_steps)};
  }

  /// The last node that the draft model has a draft for; 0 without one.
  STEPGRAPH_HD int last_drafted(const own_row& own) const {
    if (!p.drafts.chain || !p.rows.state.first_draft) return 0;
    return own.sits_out < 0 ? 1 : 1 + (own.steps < p.drafts.max_steps ? own.steps : p.drafts.max_steps);
  }

  /// The vectors of chains of few tokens, as verify_inputs_op::short_rows() makes them.
  template <class Team>
  STEPGRAPH_HD void short_rows(Team& team, const verify_inputs_op& inputs) const {
    using lanes = row_lanes<Team>;
    using lane_nodes = verify_inputs_op::lane_nodes<Team>;
    using row_numbers = verify_inputs_op::row_numbers;
    detail::staged_row staged{};
    own_row own{};
    const auto read_row = [&](int row) {
      staged = detail::read_staged(p.rows, row);
      own = read_own(row);
    };
    if (lanes::row(team) < p.rows.rows) read_row(lanes::row(team));
    bool patched;
    const int live = begin_rows(team, p.rows, patched);
    if (patched) team.sync();  // the table is read below
    gathered_row of{};
    read_drafts<lane_nodes::room> read{};
    inputs.short_rows(
        team,
        [&](int row, row_numbers& numbers, lane_nodes& mine, fault_note& faults) {
          if (row != lanes::row(team)) read_row(row);
          std::int32_t last_token = -1;
          of = gather_row(p.rows, row < live || guard_off("pad-shrink"), staged, [&](std::int32_t request) {
            last_token = p.verify.last_token[request];
            read = read_nodes<lane_nodes::room>(row, request, own, lanes::lane(team), lanes::count,
                                                staged.count);
          });
          const bool first_lane = lanes::lane(team) == 0;
          if (first_lane) put_row(p.rows, row, of, staged, faults);
          if (!of.live) return false;
          numbers = {of.request, of.length, 0, of.count, of.capacity};
          inputs.read_entries(team, numbers, mine);
          // of a request that joins, what was read is another's
          if (of.joins) forget_first(read, lanes::lane(team), lanes::count);
          numbers.asked = take_nodes(row, of, read, lanes::lane(team), lanes::count, mine.id);
          if (first_lane) mine.id[0] = of.joins ? -1 : last_token;
          return true;
        },
        [&](int row, const row_numbers& numbers) {
          if (numbers.asked >= of.count) return;
          if (lanes::lane(team) == 0) p.rows.query_counts[row] = numbers.asked;
          report_draft(row, read, lanes::lane(team), lanes::count, numbers.asked);
        });
  }

  /// Reads nodes below `wanted`: `first`, and so on by `step`.
  template <int together>
  STEPGRAPH_HD read_drafts<together> read_nodes(int row, std::int32_t request, const own_row& own, int first,
                                                int step, int wanted) const {
    read_drafts<together> read{};
    const int last = last_drafted(own);
    if (wanted > p.rows.max_query_count) wanted = p.rows.max_query_count;
    const chosen_tokens firsts = p.rows.state.first_drafts(nullptr), later{p.drafts.chain, p.drafts.ranked};
    STEPGRAPH_UNROLL
    for (int i = 0; i < together; ++i) {
      const int node = first + i * step;
      const bool there = node > 0 && node < wanted, drafted = there && node <= last;
      read.staged[i] = fetch_if(there, p.staged_tokens, own.start + node);
      const bool by_request = node == 1;
      const chosen_tokens from{by_request ? firsts.ids : later.ids,
                               by_request ? firsts.ranked : later.ranked};
      read.own[i] = from.read(by_request ? request : (node - 2) * std::int64_t{p.rows.rows} + row, drafted);
      if (p.verify.parents) read.above[i] = fetch_if(there, p.staged_parents, own.start + node);
      read.drafted[i] = drafted;
    }
    return read;
  }

  /// Nothing is drafted for node 1.
  template <int together>
  STEPGRAPH_HD static void forget_first(read_drafts<together>& read, int first, int step) {
    STEPGRAPH_UNROLL
    for (int i = 0; i < together; ++i)
      if (first + i * step == 1) {
        read.drafted[i] = false;
        read.own[i].number = 0;
      }
  }

  /// Writes the nodes below a row's count that there are drafts for, and their ids. Returns the first for which there is
  /// none, or, where all are there, the count, but not a node behind the last one looked at.
  template <int together>
  STEPGRAPH_HD int take_nodes(int row, const gathered_row& of, const read_drafts<together>& read, int first,
                              int step, std::int32_t (&ids)[together]) const {
    const std::int64_t line = row * p.verify.draft_stride;
    auto* const drafts = const_cast<std::int32_t*>(p.verify.drafts) + line;
    auto* const parents = const_cast<std::int32_t*>(p.verify.parents);
    chosen_tokens{.target_ids = p.drafts.target_ids}.choose(read.own, ids);
    int node = of.count;
    if (step == 1 && first + together < node) node = first + together;
    STEPGRAPH_UNROLL
    for (int i = 0; i < together; ++i) {
      const int own = first + i * step;
      if (!read.drafted[i]) ids[i] = -1;
      if (read.staged[i] >= 0) ids[i] = read.staged[i];
      if (own == 0 || own >= node) continue;
      if (ids[i] < 0) {
        node = own;
        continue;
      }
      drafts[own - 1] = ids[i];
      if (p.draft_lines)
        p.draft_lines[line + own - 1] =
            read.staged[i] >= 0 || !was_drawn(own, of.request)
                ? -1
                : draft_line(own, row, of.request, p.rows.rows, p.rows.state.requests);
      if (parents) parents[row * p.verify.parent_stride + own] = read.above[i];
    }
    return node;
  }

  /// Whether the draft model's draft has a distribution that it was drawn from: the step that made it may have been a
  /// greedy one.
  STEPGRAPH_HD bool was_drawn(int node, std::int32_t request) const {
    const std::int32_t* const drawn = node == 1 ? p.rows.state.first_drawn : p.drafts.drawn;
    return !drawn || drawn[node == 1 ? request : 0] != 0;
  }

  /// `missing`, among the nodes read, has no draft; that of its head may be none, which ends no row.
  template <int together>
  STEPGRAPH_HD void report_draft(int row, const read_drafts<together>& read, int first, int step,
                                 int missing) const {
    std::uint64_t number = 0;
    STEPGRAPH_UNROLL
    for (int i = 0; i < together; ++i)
      if (first + i * step == missing) number = read.own[i].number;
    if (number == 0) return;
    fault_sink faults = p.rows.faults;
    faults.row_status = nullptr;
    report_unranked(faults, row, number);
  }
};

}  // namespace stepgraph
