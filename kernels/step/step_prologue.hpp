#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "kernels/step/step_rows.hpp"

namespace stepgraph {

/// The first node of a decode or extend step: gathers the rows, makes the token inputs, and makes dead rows
/// and tokens harmless (token 0, position 0, the sink slot) for foreign kernels that run over the whole
/// bucket. One block.
struct step_prologue_params {
  step_rows_params rows{};
  const std::int32_t* staged_tokens = nullptr;  // staged, or -1: the request's last token
  std::int32_t vocab_size = 0;                  // token ids outside [0, vocab_size) are reported and become 0
  std::int32_t* token_ids = nullptr;            // out [tokens], 0 for dead tokens
  token_inputs_params inputs{};                 // its inputs are the outputs of `rows`
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void step_prologue(stream_ref at, const step_prologue_params& params);

}  // namespace stepgraph
