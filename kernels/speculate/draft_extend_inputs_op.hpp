#pragma once

#include "kernels/metadata/row_vectors.hpp"
#include "kernels/metadata/token_inputs_op.hpp"
#include "kernels/speculate/draft_extend_inputs.hpp"

namespace stepgraph {

/// Body of `draft_extend_inputs`.
struct draft_extend_inputs_op {
  static constexpr const char* name = "draft_extend_inputs";
  static constexpr int tile_columns = 0;  // vectors only
  draft_extend_inputs_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const row_numbers first = accepted_of(team.rank() < rows() ? team.rank() : 0);
    const int live = live_count(p.verify.live_rows, rows());
    const bool plain = p.plain.accepts && *p.plain.accepts == 0;
    if (!plain && p.verify.max_query_count <= few) return short_rows(team, live, first);
    for (int row = team.rank(); row < rows(); row += team.size())
      begin_row(row, row < live ? count_of(row, plain ? plain_of(row) : accepted_of(row), plain) : 0,
                static_cast<std::int32_t>(p.inputs.requests[row]));
    // note: a thread's rows are its own, so the counts may be read; the scans make them readable to all
    if (p.cache_seqlens)
      write_lengths(team, p.inputs.lengths, p.cache_seqlens, p.cu_seqlens_k, {}, op_id::draft_extend_inputs);
    // a step that was no verify step may have given a row all its tokens
    token_inputs_op{p.inputs}.vectors(team, !plain, [&](int token, const token_place& at, bool is_live) {
      write_token(token, is_live ? token_id(at.row, at.number, plain) : 0,
                  !is_live || !p.hidden_row ? 0
                  : plain                   ? p.verify.cu_seqlens_q[at.row] + at.number
                          : p.verify.cu_seqlens_q[at.row] + p.result.path_of(at.row)[at.number]);
    });
  }

 private:
  static constexpr int few = emitted_tokens::room;  // tokens of a row that its thread makes by itself

  /// What a row's entries are: `few` at most, of a verify step.
  struct row_entries : token_inputs_op::row_tokens<few> {
    emitted_tokens next;
    std::int32_t hidden[few];
  };

  /// What the count of a row depends on, and where its tokens begin in the target step.
  struct row_numbers {
    std::int64_t request;
    std::int64_t before;  // tokens before the round
    std::int32_t emitted, cached;
    std::int32_t first;
  };
  // note: of a dead row, too, so that its numbers come with the live count; they are not used
  STEPGRAPH_HD row_numbers accepted_of(int row) const {
    return {p.inputs.requests.fetch(row), p.inputs.lengths.seq_lens.fetch(row) + p.inputs.lengths.delta,
            fetch_or_zero(p.result.emit_count + row), fetch_or_zero(p.result.cache_advance + row),
            fetch_or_zero(p.verify.cu_seqlens_q + row)};
  }
  STEPGRAPH_HD row_numbers plain_of(int row) const {
    const std::int64_t request = p.inputs.requests[row];
    return {request, 0, p.plain.query_counts[row], has(request) ? p.plain.last_token[request] : -1, 0};
  }

  /// The vectors of a verify step of few tokens a row, as token_inputs_op::few_vectors() makes them.
  template <class Team>
  STEPGRAPH_HD void short_rows(Team& team, int live, const row_numbers& first) const {
    const row_lengths& lengths = p.inputs.lengths;
    std::int64_t lengths_before = 0, before = 0;
    if (team.rank() == 0 && p.cache_seqlens && p.cu_seqlens_k) p.cu_seqlens_k[0] = 0;
    token_inputs_op{p.inputs}.template few_vectors<row_entries>(
        team,
        [&](int row, row_entries& mine) {
          const row_numbers of = row == team.rank() ? first : accepted_of(row);
          before = of.before;
          std::int32_t count = 0;
          if (row < live) {
            const std::int32_t most = entries_of(of);
            read_entries(mine, of, row, most);
            count = count_of(row, of, false);
            if (count > most) count = most;
            clamp_reported(before + count, 0, lengths.cap, p.inputs.faults, token_inputs_op::id, row,
                           row_status::length_clamped);
          }
          begin_row(row, count, static_cast<std::int32_t>(of.request));
          return count;
        },
        [&](int token, const row_entries& of, int j) { write_token(token, of.next.id[j], of.hidden[j]); },
        [&](int token) { write_token(token, 0, 0); },
        [&](int row, std::int32_t count) {
          const std::int64_t length = row < live ? clamped(before + count) : 0;
          const auto sums = team.exclusive_sums(count, length);
          if (row < rows() && p.cache_seqlens) {
            p.cache_seqlens[row] = static_cast<std::int32_t>(length);
            if (p.cu_seqlens_k)
              p.cu_seqlens_k[row + 1] =
                  static_cast<std::int32_t>(lengths_before + sums.second.before + length);
          }
          lengths_before += sums.second.total;
          return sums.first;
        });
  }

  STEPGRAPH_HD std::int64_t clamped(std::int64_t length) const {
    return length < 0 ? 0 : length > p.inputs.lengths.cap ? p.inputs.lengths.cap : length;
  }

  /// Of a row that its request's end does not keep from any.
  STEPGRAPH_HD static std::int32_t entries_of(const row_numbers& of) {
    const std::int32_t entries = of.emitted < of.cached ? of.emitted : of.cached;
    return entries < few ? entries : few;
  }

  STEPGRAPH_HD void read_entries(row_entries& mine, const row_numbers& of, int row,
                                 std::int32_t count) const {
    token_inputs_op{p.inputs}.read_entries(mine, of.request, of.before, count);
    p.result.read(row, 0, count, mine.next);
    STEPGRAPH_UNROLL
    for (int j = 0; j < few; ++j)
      if (j < count) mine.hidden[j] = of.first + p.result.path_of(row)[j];
  }

  /// What a row has whatever its tokens are.
  STEPGRAPH_HD void begin_row(int row, std::int32_t count, std::int32_t request) const {
    p.query_counts[row] = count;
    const std::int32_t line = !p.out_line ? row : count > 0 ? request : p.inputs.source.requests;
    if (p.out_line) p.out_line[row] = line;
    if (p.ranked) p.ranked[line] = 0;
    if (p.first_drawn) p.first_drawn[line] = p.draws ? 1 : 0;
  }

  STEPGRAPH_HD void write_token(int token, std::int32_t next, std::int32_t hidden) const {
    p.token_ids[token] = next;
    if (p.hidden_row) p.hidden_row[token] = hidden;
  }

  STEPGRAPH_HD std::int32_t token_id(int row, int entry, bool plain) const {
    if (!plain) return p.result.emitted(row)[entry];
    return entry + 1 < p.query_counts[row] ? p.plain.token_ids[p.verify.cu_seqlens_q[row] + entry + 1]
                                           : p.plain.last_token[p.inputs.requests[row]];
  }

  STEPGRAPH_HD bool has(std::int64_t request) const { return p.inputs.source.has_request(request); }

  STEPGRAPH_HD std::int32_t count_of(int row, const row_numbers& of, bool plain) const {
    if (!has(of.request)) {
      p.inputs.faults.report(op_id::draft_extend_inputs, row, row_status::request_out_of_range, of.request);
      return 0;
    }
    if (p.finished && p.finished[of.request] != 0) return 0;
    if (plain) return of.cached >= 0 ? of.emitted : 0;
    return of.emitted < of.cached ? of.emitted : of.cached;
  }
};

}  // namespace stepgraph
