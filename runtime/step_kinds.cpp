#include "graphs/error.hpp"
#include "runtime/step_context.hpp"

namespace stepgraph {

const char* to_string(step_kind kind) noexcept {
  switch (kind) {
    case step_kind::decode:
      return "decode";
    case step_kind::extend:
      return "extend";
    case step_kind::target_verify:
      return "target_verify";
    case step_kind::draft_extend:
      return "draft_extend";
    case step_kind::draft_decode:
      return "draft_decode";
  }
  return "unknown kind";
}

bool is_ragged(step_kind kind) noexcept {
  switch (kind) {
    case step_kind::decode:
    case step_kind::draft_decode:
      return false;
    case step_kind::extend:
    case step_kind::target_verify:
    case step_kind::draft_extend:
      return true;
  }
  return true;
}

bool is_draft(step_kind kind) noexcept {
  return kind == step_kind::draft_extend || kind == step_kind::draft_decode;
}

std::string to_string(const step_key& key) {
  const std::string steps = key.kind == step_kind::draft_decode ? message(", ", key.steps, " steps") : "";
  return message(to_string(key.kind), ", ", key.rows, " rows, ", key.tokens, " tokens, variant ", key.variant,
                 steps);
}

}  // namespace stepgraph
