#pragma once

#include <cstdint>

namespace stepgraph {

/// Calls of operator new on this thread so far. Linking allocation_counter.cpp replaces the operator for the
/// whole program, so that a test can say that a call allocates nothing.
std::uint64_t host_allocations();

}  // namespace stepgraph
