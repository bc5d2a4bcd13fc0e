#pragma once

#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "kernels/settled.hpp"
#include "kernels/step/request_state.hpp"

namespace stepgraph {

/// The rows of a step as the host staged them, and the vectors that every step makes of them first.
struct step_rows_params {
  const staged_header* header = nullptr;        // staged, as are the six below
  const std::int32_t* requests_in = nullptr;    // [rows] line of the request
  const std::int32_t* counts_in = nullptr;      // [rows] E
  const std::int32_t* token_starts = nullptr;   // [rows] where the row's tokens begin among the staged ones
  const std::int32_t* following = nullptr;      // [rows] token after the row's own, or -1: the one sampled
  const std::int32_t* capacities_in = nullptr;  // [rows] tokens that its pages can hold
  const std::int32_t* joins_in = nullptr;       // [rows] request_join of the row, or -1
  std::int32_t rows = 0;                        // B, captured
  std::int32_t max_query_count = 0;             // Emax
  std::int32_t max_patches = 0;
  std::int32_t max_joins = 0;
  request_state state{};

  std::int32_t* live_rows = nullptr;     // out, n in [0, rows]
  std::int32_t* requests = nullptr;      // out [rows], 0 for dead rows
  std::int32_t* query_counts = nullptr;  // out [rows], E in [0, Emax], 0 for dead and ended rows
  std::int32_t* seq_lens = nullptr;      // out [rows], tokens before the step, 0 for dead rows
  std::int32_t* row_status = nullptr;    // out [rows], reset to ok
  ranked_lines ranked{};                 // out: cleared for the step's output head, or null
  fault_sink faults{};
};

/// Throws `invalid_argument` naming what is missing.
void check(const char* op, const step_rows_params& params);

namespace detail {

template <class Team>
STEPGRAPH_HD void apply_patches(Team& team, const step_rows_params& p) {
  const auto* const patches =
      reinterpret_cast<const page_patch*>(reinterpret_cast<const char*>(p.header) + p.header->patch_offset);
  const int given = p.header->patches, count = given < 0 ? 0 : given > p.max_patches ? p.max_patches : given;
  STEPGRAPH_NO_UNROLL
  for (int i = team.rank(); i < count; i += team.size()) {
    const page_patch patch = patches[i];
    if (!p.state.has(patch.request) || patch.index < 0 || patch.index >= p.state.page_columns) {
      p.faults.report(op_id::step_prologue, -1, row_status::request_out_of_range, patch.request);
      continue;
    }
    p.state.pages[patch.request * p.state.page_stride + patch.index] = patch.page;
  }
}

STEPGRAPH_HD void join(const step_rows_params& p, std::int32_t request, std::int32_t number) {
  const auto* const joins =
      reinterpret_cast<const request_join*>(reinterpret_cast<const char*>(p.header) + p.header->join_offset);
  p.state.seq_lens[request] = 0;
  p.state.last_token[request] = -1;
  if (p.state.finished) p.state.finished[request] = 0;
  if (p.state.budget) p.state.budget[request] = joins[number].budget;
  if (p.state.sampling) p.state.sampling[request] = joins[number].sampling;
  p.state.forget_first_draft(request);
}

/// What is staged of a row, read whether it is live or not, so that one latency covers both; a dead row's numbers are
/// there, but not used.
struct staged_row {
  std::int32_t request, count, capacity, joins;
};
STEPGRAPH_HD staged_row read_staged(const step_rows_params& p, int row) {
  return {fetch_or_zero(p.requests_in + row), fetch_or_zero(p.counts_in + row),
          fetch_or_zero(p.capacities_in + row), fetch_or_zero(p.joins_in + row)};
}

}  // namespace detail

/// A row as it was gathered, for whoever makes more of it in the same node.
struct gathered_row {
  std::int32_t request;   // 0 where there is none
  std::int32_t count;     // E
  std::int32_t length;    // tokens before the step
  std::int32_t capacity;  // tokens that its pages can hold
  bool live;
  bool there;  // its request exists, too
  bool joins;  // its request begins with this step
};

/// What there is of one row; nothing is written. `read(request)` reads beside it what else is wanted of a live row's
/// request; of one that joins it is not its own. What the row and its request have is read before any of it is used, so
/// that one latency covers it.
template <class Read>
STEPGRAPH_HD gathered_row gather_row(const step_rows_params& p, bool live, const detail::staged_row& staged,
                                     const Read& read) {
  gathered_row made{};
  made.live = live;
  made.there = live && p.state.has(staged.request);
  std::int32_t finished = 0;
  if (made.there) {
    made.request = staged.request;
    made.length = p.state.seq_lens[made.request];
    finished = fetch_or_zero(p.state.finished ? p.state.finished + made.request : nullptr);
    read(made.request);
  }
  made.joins = made.there && staged.joins >= 0 && staged.joins < p.max_joins;
  if (made.joins) made.length = finished = 0;
  made.capacity = staged.capacity;
  const std::int32_t count = made.there && finished == 0 ? staged.count : 0;
  made.count = count < 0 ? 0 : count > p.max_query_count ? p.max_query_count : count;
  return made;
}

/// Writes what was gathered of a row, and reports what had to be changed to a sink or a note: one thread.
template <class Faults>
STEPGRAPH_HD void put_row(const step_rows_params& p, int row, const gathered_row& of,
                          const detail::staged_row& staged, Faults& faults) {
  p.row_status[row] = 0;
  if (of.live && !of.there)  // the row sits the step out
    faults.report(op_id::step_prologue, row, row_status::request_out_of_range, staged.request);
  if (of.there && (staged.count < 0 || staged.count > p.max_query_count))
    faults.report(op_id::step_prologue, row, row_status::query_count_clamped, staged.count);
  if (of.joins) detail::join(p, of.request, staged.joins);
  if (of.there && p.state.token_capacity) p.state.token_capacity[of.request] = of.capacity;
  p.requests[row] = of.request;
  p.query_counts[row] = of.count;
  p.seq_lens[row] = of.length;
}

/// What a step's first node does before its rows are gathered: the number of live rows, the lines that are cleared, and
/// the host's changes of page tables. Returns the live rows; `patched`: entries were changed, which a sync() makes
/// readable to all.
template <class Team>
STEPGRAPH_HD int begin_rows(Team& team, const step_rows_params& p, bool& patched) {
  const std::int32_t given = p.header->live_rows;
  patched = p.header->patches > 0;
  p.ranked.clear(team);
  const int live = given < 0 ? 0 : given > p.rows ? p.rows : given;
  if (team.rank() == 0) {
    *p.live_rows = live;
    if (live != given) p.faults.report(op_id::step_prologue, -1, row_status::live_rows_clamped, given);
  }
  if (patched) detail::apply_patches(team, p);
  return live;
}

/// Makes the vectors and applies what the host has changed. `visit(row, gathered)` sees every row, of a live one behind
/// `read(row, request)`, as in gather_row(). A thread's rows are its own throughout (row = rank, rank + size, ...); a
/// sync() makes them, and the page table, readable to all.
template <class Team, class Read, class Visit>
STEPGRAPH_HD void gather_rows(Team& team, const step_rows_params& p, const Read& read, const Visit& visit) {
  detail::staged_row staged{};
  if (team.rank() < p.rows) staged = detail::read_staged(p, team.rank());
  bool patched;
  const int live = begin_rows(team, p, patched);
  for (int row = team.rank(); row < p.rows; row += team.size()) {
    if (row != team.rank()) staged = detail::read_staged(p, row);
    const gathered_row of = gather_row(p, row < live || guard_off("pad-shrink"), staged,
                                       [&](std::int32_t request) { read(row, request); });
    put_row(p, row, of, staged, p.faults);
    visit(row, of);
  }
}
template <class Team>
STEPGRAPH_HD void gather_rows(Team& team, const step_rows_params& p) {
  gather_rows(
      team, p, [](int, std::int32_t) {}, [](int, const gathered_row&) {});
}

}  // namespace stepgraph
