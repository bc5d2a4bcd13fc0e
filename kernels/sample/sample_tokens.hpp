#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/guard.hpp"
#include "kernels/sample/sampling_settings.hpp"
#include "kernels/sample/token_output.hpp"

namespace stepgraph {

/// Draws a token from each live row's target distribution: mask, temperature, top-k, top-p, min-p, as the
/// row's settings say; greedy rows may sit among them. Serves plain decoding (bonus draws) and the draft's
/// own steps (draft draws, with q written out for the accept). A NaN logit or a mask that allows nothing
/// gives -1 and a named status. The embedder owns all memory; addresses and numbers are baked into a capture,
/// contents may change.
struct sample_tokens_params {
  const float* logits = nullptr;   // [rows, vocab_size]
  std::int64_t logits_stride = 0;  // elements between rows
  std::int32_t rows = 0;           // B, captured
  std::int32_t vocab_size = 0;
  const std::int32_t* live_rows = nullptr;     // n
  const std::int32_t* query_counts = nullptr;  // [rows] or null; a row with 0 gets -1
  sampling_view sampling{};                    // of the rows
  allowed_view allowed{};                      // a line a row
  const std::int32_t* position = nullptr;  // [rows] position of the token being decided, less position_offset
  std::int32_t position_offset = 0;        // 0 with lengths that count the new token, draft step, ...
  draw_purpose purpose = draw_purpose::bonus_draw;  // or draft_draw
  std::int32_t node = 0;                            // node of the draw, see random_number; below 2^24

  std::int32_t* next_token = nullptr;     // out [rows]; 0 for dead rows
  token_output out{};                     // where and how they, and lines of probabilities, are written
  float* probabilities = nullptr;         // out [rows, vocab_size] or null: p, live rows that drew alone
  std::int64_t probabilities_stride = 0;  // elements between rows
  float* logprobs = nullptr;  // out [rows] or null: ln p(token), live rows alone; 0 where none was drawn
  float* unfiltered_logprobs = nullptr;  // out [rows] or null: the same of the masked logits alone
  fault_sink faults{};
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const sample_tokens_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void sample_tokens(stream_ref at, const sample_tokens_params& params);

}  // namespace stepgraph
