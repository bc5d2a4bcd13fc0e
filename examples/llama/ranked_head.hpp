#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/element_type.hpp"

namespace stepgraph::llama {

/// An output head of which only the largest logit of each token is asked, so that no logits are written and read again.
/// The states need no norm: a positive factor changes no order. A token's number has the same bits whatever tokens
/// ride along. For Hopper alone.
struct ranked_head {
  const bf16* weight = nullptr;  // [rows, columns], 16-byte aligned
  int rows = 0;                  // vocabulary
  int columns = 0;               // multiple of 64
  const bf16* x = nullptr;       // [*, columns], 16-byte aligned
  int tokens = 0;
  const std::int32_t* source = nullptr;  // [tokens] line of x of each token, or null: the token itself
  /// out: a token's number, raised to the largest `ranked_logit`. Null: the product alone, for benchmarks.
  std::uint64_t* ranked = nullptr;
  const std::int32_t* line = nullptr;  // [tokens] number of each token, or null: the token's own
};

/// Whether the device and the shape are such as `multiply` takes: the tokens' columns lie in shared memory.
bool serves(device where, int columns, int tokens);

/// Enqueues one launch on a CUDA stream. The weights are read before it waits for its predecessor. Refused with
/// `invalid_argument`: what it does not serve.
void multiply(stream_ref at, const ranked_head& head);

}  // namespace stepgraph::llama
