#pragma once

#include <bit>
#include <cstdint>

namespace stepgraph::llama {

/// The float of an IEEE half's bits; exact, subnormals, infinities and NaNs included.
inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
  // exponent and mantissa in place read as value * 2^-112; the multiplication also normalises subnormals
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : 0;
  return std::bit_cast<float>(sign | (special != 0 ? special : std::bit_cast<std::uint32_t>(scaled)));
}

/// The float of a bfloat16's bits.
inline float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace stepgraph::llama
