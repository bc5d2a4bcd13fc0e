#pragma once

#include <cstdint>

#include "kernels/element_type.hpp"

namespace stepgraph {

/// The sizes that a step executor is built for. Everything is carved once for these; a request over one is
/// refused before launch, by name.
struct step_limits {
  int max_rows = 8;                 // requests in one step
  int max_step_tokens = 64;         // tokens in one step of a ragged kind (prompt chunks)
  int max_draft_tokens = 0;         // K: drafts of a row in one verify step
  int max_requests = 8;             // requests open at once, lines of the request table
  std::int64_t max_context = 2048;  // tokens of one request, prompt and answer
  int page_size = 16;               // tokens in a page, a power of two from 1 to 1024
  std::int64_t kv_pages =
      0;  // pages of the pool, the sink page included; 0: enough for every request at max_context
  int vocab_size = 0;   // tokens are in [0, vocab_size)
  int hidden_size = 0;  // of the target's states that a draft is fed; 0 where there is no draft
  int in_flight = 4;    // steps launched whose results the host has not waited for
};

/// Shape of the KV cache of one model.
struct kv_layout {
  element_type type = element_type::bf16;
  int layers = 0;
  int kv_heads = 0;
  int head_size = 0;
};

/// What an executor needs to know of a draft that runs beside its target. The draft keeps its keys and values
/// in a pool of its own, at the pages of the target's: its entry at position p stands for the token at p + 1
/// beside the target's hidden state at p, and says what may come at p + 2.
struct draft_shape {
  kv_layout layout{};
  int hidden_size = 0;  // of the states it is fed; must be the target's
  int vocab_size = 0;   // tokens it chooses among; the target's unless there are maps
  // maps of a reduced vocabulary, in device memory, both or neither
  const std::int32_t* target_ids = nullptr;  // [vocab_size] token of the target
  const std::int32_t* draft_ids = nullptr;   // [the target's vocab_size] id in the draft, or negative
};

}  // namespace stepgraph
