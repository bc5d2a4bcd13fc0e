#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/check_pointers.hpp"

namespace stepgraph::detail {

/// Refuses what vector loads cannot read, by name: "paged_attention: query is at 0x7f02, not 16-byte aligned". Null
/// is aligned.
inline void check_aligned(const char* op, std::uintptr_t bytes, std::initializer_list<named_pointer> pointers,
                          source_place place = source_place::current()) {
  for (const named_pointer& each : pointers)
    if (reinterpret_cast<std::uintptr_t>(each.pointer) % bytes != 0)
      throw_invalid_argument(
          message(op, ": ", each.name, " is at ", each.pointer, ", not ", bytes, "-byte aligned"), place);
}

}  // namespace stepgraph::detail
