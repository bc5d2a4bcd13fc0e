#pragma once

/// The switch that shows that a guard is needed: `guard_off(id)` stands beside each guard of `docs/faults.md`.
namespace stepgraph {

#if defined(STEPGRAPH_MUTATIONS)
/// True if the guard named `id` is turned off, by STEPGRAPH_GUARD_OFF=id in the environment. Only in builds
/// with -Dmutations=true, whose tests then have to fail (`scripts/test_mutations.py`).
bool guard_off(const char* id) noexcept;
#else
#if defined(__CUDACC__)
__host__ __device__
#endif
    constexpr bool
    guard_off(const char*) noexcept {
  return false;
}
#endif

}  // namespace stepgraph
