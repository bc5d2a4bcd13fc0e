#pragma once

#include <initializer_list>
#include <string>

#include "graphs/error.hpp"

namespace stepgraph::detail {

/// A pointer of a parameter struct and how the caller spells it.
struct named_pointer {
  const char* name;
  const void* pointer;
};

/// Refuses null pointers, all of them by name: "kv_split_plan: chunks is null, cu_chunks is null".
inline void check_pointers(const char* op, std::initializer_list<named_pointer> pointers,
                           source_place place = source_place::current()) {
  std::string missing;
  for (const named_pointer& each : pointers)
    if (!each.pointer) missing += message(missing.empty() ? ": " : ", ", each.name, " is null");
  if (!missing.empty()) throw_invalid_argument(op + missing, place);
}

}  // namespace stepgraph::detail
