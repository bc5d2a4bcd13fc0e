#pragma once

#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/sample/ranked_logit.hpp"
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

// note: what the row and its request have is read before anything is written, so that two latencies cover it
STEPGRAPH_HD void gather_row(const step_rows_params& p, int row, bool live) {
  std::int32_t request = live ? p.requests_in[row] : 0;
  std::int32_t count = live ? p.counts_in[row] : 0;
  const std::int32_t joins = live ? p.joins_in[row] : -1, capacity = live ? p.capacities_in[row] : 0;
  if (!p.state.has(request)) {
    p.faults.report(op_id::step_prologue, row, row_status::request_out_of_range, request);
    request = count = 0;  // the row sits the step out
    live = false;
  }
  std::int32_t length = live ? p.state.seq_lens[request] : 0;
  if (live) {
    bool ended = p.state.ended(request);
    if (joins >= 0 && joins < p.max_joins) {
      join(p, request, joins);
      length = 0;
      ended = false;
    }
    if (p.state.token_capacity) p.state.token_capacity[request] = capacity;
    if (ended) count = 0;
  }
  p.requests[row] = request;
  p.query_counts[row] = static_cast<std::int32_t>(clamp_reported(
      count, 0, p.max_query_count, p.faults, op_id::step_prologue, row, row_status::query_count_clamped));
  p.seq_lens[row] = length;
}

}  // namespace detail

/// Makes the vectors and applies what the host has changed. A thread's rows are its own throughout
/// (row = rank, rank + size, ...); a sync() makes them, and the page table, readable to all.
template <class Team>
STEPGRAPH_HD void gather_rows(Team& team, const step_rows_params& p) {
  const int live = live_count(&p.header->live_rows, p.rows);
  if (team.rank() == 0) {
    *p.live_rows = live;
    if (live != p.header->live_rows)
      p.faults.report(op_id::step_prologue, -1, row_status::live_rows_clamped, p.header->live_rows);
  }
  for (int row = team.rank(); row < p.rows; row += team.size()) p.row_status[row] = 0;
  p.ranked.clear(team);
  detail::apply_patches(team, p);
  for (int row = team.rank(); row < p.rows; row += team.size())
    detail::gather_row(p, row, row < live || guard_off("pad-shrink"));
}

}  // namespace stepgraph
