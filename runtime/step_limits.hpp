#pragma once

#include <cstdint>

#include "kernels/element_type.hpp"

namespace stepgraph {

/// The sizes that a step executor is built for. Everything is carved once for these; a request over one is
/// refused before launch, by name.
struct step_limits {
  int max_rows = 8;                 // requests in one step
  int max_step_tokens = 64;         // tokens in one step of a ragged kind (prompt chunks)
  int max_requests = 8;             // requests open at once, lines of the request table
  std::int64_t max_context = 2048;  // tokens of one request, prompt and answer
  int page_size = 16;               // tokens in a page, a power of two from 1 to 1024
  std::int64_t kv_pages =
      0;  // pages of the pool, the sink page included; 0: enough for every request at max_context
  int vocab_size = 0;  // tokens are in [0, vocab_size)
  int in_flight = 4;   // steps launched whose results the host has not waited for
};

/// Shape of the KV cache of one model.
struct kv_layout {
  element_type type = element_type::bf16;
  int layers = 0;
  int kv_heads = 0;
  int head_size = 0;
};

}  // namespace stepgraph
