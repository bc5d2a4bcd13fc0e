#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/speculate/verify_inputs.hpp"
#include "kernels/step/step_rows.hpp"

namespace stepgraph {

/// What the draft's own steps left for the rows of a verify step.
struct device_drafts {
  std::int32_t max_steps = 0;             // lines of `chain`
  const std::int32_t* chain = nullptr;    // [max_steps, rows] d2, d3, ...; negative for none. Null: no draft
  const std::uint64_t* ranked = nullptr;  // likewise or null: as the draft's head ranked them, or 0
  const std::int32_t* target_ids = nullptr;  // token of each id that was ranked, or null
  const std::int32_t* drawn = nullptr;       // [1] or null: 0 where the chain was chosen, not drawn
  const std::int32_t* seq_lens = nullptr;    // [rows] negative for a row that sat the draft decodes out
};

/// The first node of a verify step: gathers the rows and their drafts, staged or the draft model's own, and
/// makes the inputs of a ragged verify (see `verify_inputs`). A row takes as many drafts as there are. One
/// block.
struct verify_prologue_params {
  step_rows_params rows{};                       // its query_counts are those wanted
  const std::int32_t* staged_tokens = nullptr;   // a row's first is not read; -1: the draft model's
  const std::int32_t* staged_parents = nullptr;  // with trees: as the tokens
  device_drafts drafts{};
  std::int32_t* draft_lines =
      nullptr;                    // out [rows, verify.draft_stride] or null: line of q, -1 if it was chosen
  verify_inputs_params verify{};  // wanted, drafts and parents are outputs too: they are made here
};

/// Line of q that draft number `number` (1: d1) of a row has: d1 lies by request, the others by step and row.
STEPGRAPH_HD std::int32_t draft_line(int number, int row, std::int32_t request, int rows,
                                     std::int32_t requests) {
  return number == 1 ? request : requests + 1 + (number - 2) * rows + row;
}

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void verify_prologue(stream_ref at, const verify_prologue_params& params);

}  // namespace stepgraph
