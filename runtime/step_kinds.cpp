#include "graphs/error.hpp"
#include "runtime/step_context.hpp"

namespace stepgraph {

const char* to_string(step_kind kind) noexcept {
  switch (kind) {
    case step_kind::decode:
      return "decode";
    case step_kind::extend:
      return "extend";
  }
  return "unknown kind";
}

bool is_ragged(step_kind kind) noexcept {
  return kind != step_kind::decode;
}

std::string to_string(const step_key& key) {
  return message(to_string(key.kind), ", ", key.rows, " rows, ", key.tokens, " tokens, variant ",
                 key.variant);
}

}  // namespace stepgraph
