#pragma once

#include <array>
#include <cstdint>

namespace stepgraph::reference {

/// Philox4x32-10 from its publication: ten rounds over counter words 0..3, the key raised by its two
/// constants between.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// The uniform number of one decision, as the definitions key it. Purposes: 0 draft draw, 1 accept coin, 2
/// residual draw, 3 bonus draw.
double uniform(std::uint64_t seed, std::uint64_t request, std::uint32_t position, std::uint32_t purpose,
               std::uint32_t node);

}  // namespace stepgraph::reference
