#pragma once

#include "kernels/columns.hpp"

/// Accesses of 16 bytes, and whether the L2 cache is to keep what they move.
namespace stepgraph {

/// What is expected to be wanted again soon, by whoever comes next; the rest is the first to leave the cache.
enum class reuse { both, loaded, stored, neither };

template <reuse again = reuse::both>
STEPGRAPH_HD quad load_quad(const void* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (again == reuse::stored || again == reuse::neither) {
    const int4 value = __ldcs(static_cast<const int4*>(from));
    return {{value.x, value.y, value.z, value.w}};
  }
#endif
  return *static_cast<const quad*>(from);
}

/// Four times -1 where it is not `there`.
template <reuse again = reuse::both>
STEPGRAPH_HD quad load_quad_if(bool there, const void* from) {
  quad value{{-1, -1, -1, -1}};
  if (there) value = load_quad<again>(from);
  return value;
}

template <reuse again = reuse::both>
STEPGRAPH_HD void store_quad(void* to, const quad& value) {
#if defined(__CUDA_ARCH__)
  if constexpr (again == reuse::loaded || again == reuse::neither)
    return __stcs(static_cast<int4*>(to), make_int4(value.v[0], value.v[1], value.v[2], value.v[3]));
#endif
  *static_cast<quad*>(to) = value;
}

/// Stores what `stays` in the cache, until something else is wanted there, or is the first to leave it.
STEPGRAPH_HD void store_quad_if_stays(bool stays, void* to, const quad& value) {
  if (stays)
    store_quad(to, value);
  else
    store_quad<reuse::neither>(to, value);
}

#if defined(__CUDA_ARCH__)
#define STEPGRAPH_NO_UNROLL _Pragma("unroll 1")
#else
#define STEPGRAPH_NO_UNROLL
#endif

// code that is rarely run, kept from among what always is: a jump over it waits for instructions
#if defined(__CUDACC__)
#define STEPGRAPH_COLD __host__ __device__ __noinline__
#else
#define STEPGRAPH_COLD [[gnu::noinline]]
#endif

/// What `fill_columns` does to one line, off the hot path: a few instructions, so that they push nothing else
/// out of the instruction cache.
template <class Team>
STEPGRAPH_HD void fill_tail(Team& team, std::int32_t* line, std::int32_t begin, std::int32_t end,
                            std::int32_t value) {
  STEPGRAPH_NO_UNROLL
  for (std::int32_t x = begin + team.rank(); x < end; x += team.size()) line[x] = value;
}

}  // namespace stepgraph
