#pragma once

#include <cstdint>

#include "graphs/stream.hpp"

namespace stepgraph::bench {

/// Fills `count` bfloat16 elements with values spread over [-1, 1).
void fill_random(stream_ref at, void* to, std::int64_t count, std::uint32_t seed);

/// Reads `bytes` from each of two places, as fast as a plain kernel can: the ceiling of everything that must
/// read them.
void read_plainly(stream_ref at, const void* keys, const void* values, std::int64_t bytes,
                  std::uint32_t* sink);

}  // namespace stepgraph::bench
