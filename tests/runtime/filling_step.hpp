#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step_executor.hpp"

/// What tests of the executor by itself have in common.
namespace stepgraph::filling_step {

inline constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

inline step_limits small_limits() {
  return {.max_rows = 4,
          .max_step_tokens = 8,
          .max_requests = 6,
          .max_context = 64,
          .page_size = 4,
          .vocab_size = 100};
}

/// A body that "samples" a constant by filling, so that the executor itself is what is tested.
inline step_definition filling(unsigned char byte, step_kind kind = step_kind::decode, int variant = 0) {
  return {.kind = kind,
          .variant = variant,
          .body =
              [byte](const step_context& step) {
                step.stream.fill(step.next_token, byte, sizeof(std::int32_t) * step.key.rows);
              },
          .scratch_bytes = {}};
}

inline step_row first(request_id request, const std::vector<std::int32_t>& tokens) {
  return {.request = request, .tokens = static_cast<std::int32_t>(tokens.size()), .token_ids = tokens};
}

}  // namespace stepgraph::filling_step
