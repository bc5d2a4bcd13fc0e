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
    if (inputs.has_short_rows()) return short_rows(team, inputs);
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
            node =
                take_nodes(row, of, read_nodes<together>(row, of.request, own, first, of.count), first, ids);
            more = node == first + together;
          }
          if (node < of.count) p.rows.query_counts[row] = node;
        });
    // note: the table is read behind the barriers of the scan of the rows
    inputs.vectors(team);
  }

 private:
  /// A few nodes of a row, read before the first of them is looked at, so that one latency covers them.
  template <int together>
  struct read_drafts {
    std::int32_t staged[together], above[together];
    chosen_tokens::left own[together];  // as the draft model left them
    int last;                           // that it has one for
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

  /// The vectors where rows have few tokens: what is known of a row stays with its thread from its first number to its
  /// last.
  template <class Team>
  STEPGRAPH_HD void short_rows(Team& team, const verify_inputs_op& inputs) const {
    constexpr int drafts = verify_inputs_op::few - 1;
    detail::staged_row staged{};
    own_row own{};
    const auto read_row = [&](int row) {
      staged = detail::read_staged(p.rows, row);
      own = read_own(row);
    };
    if (team.rank() < p.rows.rows) read_row(team.rank());
    bool patched;
    const int live = begin_rows(team, p.rows, patched);
    if (patched) team.sync();  // the table is read below
    inputs.short_rows(team, [&](int row, verify_inputs_op::row_nodes& mine) -> std::int32_t {
      if (row != team.rank()) read_row(row);
      read_drafts<drafts> read{};
      const gathered_row of =
          gather_row(p.rows, row, row < live || guard_off("pad-shrink"), staged, [&](std::int32_t request) {
            mine.id[0] = p.verify.last_token[request];
            read = read_nodes<drafts>(row, request, own, 1, staged.count);
          });
      if (!of.live) return 0;
      if (of.joins) {  // what was read of its request is another's
        mine.id[0] = -1;
        read.own[0] = {-1, 0};
      }
      verify_inputs_op::row_numbers numbers{of.request, of.length, 0, of.count, of.capacity};
      inputs.read_entries(mine, numbers);
      if (of.count > 1) {
        std::int32_t ids[drafts];
        numbers.asked = take_nodes(row, of, read, 1, ids);
        STEPGRAPH_UNROLL
        for (int i = 0; i < drafts; ++i) mine.id[i + 1] = ids[i];
        if (numbers.asked < of.count) p.rows.query_counts[row] = numbers.asked;
      }
      return inputs.count_of(row, numbers);
    });
  }

  /// Reads the nodes from `first` to `wanted`.
  template <int together>
  STEPGRAPH_HD read_drafts<together> read_nodes(int row, std::int32_t request, const own_row& own, int first,
                                                int wanted) const {
    read_drafts<together> read{};
    read.last = last_drafted(own);
    if (wanted > p.rows.max_query_count) wanted = p.rows.max_query_count;
    const int end = wanted < read.last + 1 ? wanted : read.last + 1;  // of the draft model's
    const chosen_tokens firsts = p.rows.state.first_drafts(nullptr), later{p.drafts.chain, p.drafts.ranked};
    STEPGRAPH_UNROLL
    for (int i = 0; i < together; ++i) {
      const int node = first + i;
      read.staged[i] = fetch_if(node < wanted, p.staged_tokens, own.start + node);
      read.own[i] = node == 1 ? firsts.read(request, node < end)
                              : later.read((node - 2) * std::int64_t{p.rows.rows} + row, node < end);
      if (p.verify.parents) read.above[i] = fetch_if(node < wanted, p.staged_parents, own.start + node);
    }
    return read;
  }

  /// Writes a row's nodes from `first` on, up to the first for which there is no draft: the node returned.
  template <int together>
  STEPGRAPH_HD int take_nodes(int row, const gathered_row& of, const read_drafts<together>& read, int first,
                              std::int32_t (&ids)[together]) const {
    const std::int64_t line = row * p.verify.draft_stride;
    auto* const drafts = const_cast<std::int32_t*>(p.verify.drafts) + line;
    auto* const parents = const_cast<std::int32_t*>(p.verify.parents);
    chosen_tokens{.target_ids = p.drafts.target_ids}.choose(read.own, ids);
    int node = first;
    std::uint64_t unranked = 0;  // of the node for which there is none
    STEPGRAPH_UNROLL
    for (int i = 0; i < together; ++i) {
      if (first + i > read.last) ids[i] = -1;
      if (read.staged[i] >= 0) ids[i] = read.staged[i];
      if (node != first + i || node >= of.count) continue;  // there was none before it
      if (ids[i] < 0) {
        unranked = read.own[i].number;
        continue;
      }
      drafts[node - 1] = ids[i];
      ++node;
    }
    if (p.draft_lines) {
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i)
        if (first + i < node)
          p.draft_lines[line + first + i - 1] =
              read.staged[i] >= 0 || !was_drawn(first + i, of.request)
                  ? -1
                  : draft_line(first + i, row, of.request, p.rows.rows, p.rows.state.requests);
    }
    if (parents) {
      STEPGRAPH_UNROLL
      for (int i = 0; i < together; ++i)
        if (first + i < node) parents[row * p.verify.parent_stride + first + i] = read.above[i];
    }
    if (unranked != 0) report_draft(row, unranked);
    return node;
  }

  /// Whether the draft model's draft has a distribution that it was drawn from: the step that made it may have been a
  /// greedy one.
  STEPGRAPH_HD bool was_drawn(int node, std::int32_t request) const {
    const std::int32_t* const drawn = node == 1 ? p.rows.state.first_drawn : p.drafts.drawn;
    return !drawn || drawn[node == 1 ? request : 0] != 0;
  }

  /// A draft that is none because of what its head ranked: a bad draft ends no row.
  STEPGRAPH_HD void report_draft(int row, std::uint64_t number) const {
    fault_sink faults = p.rows.faults;
    faults.row_status = nullptr;
    report_unranked(faults, row, number);
  }
};

}  // namespace stepgraph
