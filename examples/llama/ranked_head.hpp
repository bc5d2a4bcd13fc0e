#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/element_type.hpp"

namespace stepgraph::llama {

/// An output head of which only the largest logit of each token is asked: tokens beyond those that the skinny products
/// take, whose logits are too many to be written and read again. For Hopper alone.
struct ranked_head {
  const bf16* weight = nullptr;     // [rows, columns], 16-byte aligned
  int rows = 0;                     // vocabulary
  int columns = 0;                  // multiple of 64
  const bf16* x = nullptr;          // [tokens, columns]
  int tokens = 0;                   // lines of x
  std::uint64_t* ranked = nullptr;  // out [tokens]: raised to the largest `ranked_logit`
};

/// Whether the device and the shape are such as `multiply` takes: the tokens' columns lie in shared memory.
bool serves(device where, int columns, int tokens);

/// Enqueues one launch on a CUDA stream. The weights are read before it waits for its predecessor. Refused with
/// `invalid_argument`: what it does not serve.
void multiply(stream_ref at, const ranked_head& head);

}  // namespace stepgraph::llama
