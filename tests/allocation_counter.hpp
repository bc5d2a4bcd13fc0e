#pragma once

#include <cstdint>

namespace stepgraph {

/// Calls of operator new on this thread so far. Linking allocation_counter.cpp replaces the operator for the
/// whole program, so that a test can say that a call allocates nothing.
std::uint64_t host_allocations();

/// What operator new has given out on any thread and nobody has given back.
std::int64_t live_host_allocations();

/// Call number `number` of operator new on this thread from here on fails, the next one being 1, or the first one after
/// it that may throw; 0: none.
void fail_host_allocation(std::uint64_t number);

}  // namespace stepgraph
