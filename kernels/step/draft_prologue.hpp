#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/step/step_rows.hpp"

namespace stepgraph {

/// The first node of the draft decodes of a round: gathers the rows of the verify step that follows, and each
/// row's first draft. Every live row has one token a step, so that token and row have one number. A row that
/// has ended, has no first draft, or whose pages do not hold all steps sits them out: its length says so, and
/// `draft_steps_metadata` then gives it no place to read or write. One block.
struct draft_prologue_params {
  step_rows_params rows{};                   // its query_counts are those of the verify step
  std::int32_t steps = 0;                    // draft decodes
  const std::int32_t* target_ids = nullptr;  // token of each id that the draft's head ranks, or null
  std::int64_t max_context = 0;              // tokens

  bool draws = false;                    // these steps draw their drafts and leave each one's distribution
  std::int32_t* drawn = nullptr;         // out [1] or null: `draws`
  std::int32_t* seq_lens = nullptr;      // out [rows] tokens in the draft's cache; -steps: sits out
  std::int32_t* query_counts = nullptr;  // out [rows] 1, 0 for dead rows
  std::int32_t* drafting = nullptr;      // out [rows] 1, 0 for dead rows and for those that sit out
  std::int32_t* cu_seqlens_q = nullptr;  // out [rows + 1] min(k, n)
  std::int32_t* row_of = nullptr;        // out [rows] the row itself, 0 for dead ones
  std::int32_t* last_row = nullptr;      // out [rows] likewise
  std::int32_t* token_ids = nullptr;     // out [rows] d1; 0 where there is none
  std::int32_t* hidden_row = nullptr;    // out [rows] line of the request's state; `requests` for none
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void draft_prologue(stream_ref at, const draft_prologue_params& params);

}  // namespace stepgraph
