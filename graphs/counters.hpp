#pragma once

#include <atomic>
#include <cstdint>

namespace stepgraph {

/// What stepgraph has done in this process so far, on any thread. Two snapshots and a subtraction show what a
/// call did.
struct activity {
  std::uint64_t captures = 0;
  std::uint64_t instantiations = 0;
  std::uint64_t updates = 0;
  std::uint64_t launches = 0;          // graph launches
  std::uint64_t allocations = 0;       // from memory resources, device and pinned
  std::uint64_t synchronizations = 0;  // host waits for a stream or an event

  friend activity operator-(const activity& a, const activity& b) noexcept {
    return {a.captures - b.captures,       a.instantiations - b.instantiations,
            a.updates - b.updates,         a.launches - b.launches,
            a.allocations - b.allocations, a.synchronizations - b.synchronizations};
  }
  friend bool operator==(const activity&, const activity&) = default;
};

activity activity_now() noexcept;

namespace detail {
struct activity_counters {
  std::atomic<std::uint64_t> captures, instantiations, updates, launches, allocations, synchronizations;
};
activity_counters& activity_totals() noexcept;
}  // namespace detail
}  // namespace stepgraph
