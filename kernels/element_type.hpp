#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/guard.hpp"

namespace stepgraph {

/// Types of activations and cached keys and values.
enum class element_type { f32, f16, bf16 };

constexpr std::size_t size_of(element_type type) {
  return type == element_type::f32 ? 4 : 2;
}

constexpr const char* to_string(element_type type) {
  return type == element_type::f32 ? "float32" : type == element_type::f16 ? "float16" : "bfloat16";
}

/// The upper half of a float32.
struct bf16 {
  std::uint16_t bits;
};

/// IEEE 754 binary16.
struct f16 {
  std::uint16_t bits;
};

STEPGRAPH_HD float to_float(float value) {
  return value;
}

STEPGRAPH_HD float to_float(bf16 value) {
  const std::uint32_t bits = std::uint32_t{value.bits} << 16;
  return __builtin_bit_cast(float, bits);
}

STEPGRAPH_HD float to_float(f16 value) {
  // the exponent is rebased by a product, which also makes subnormals right; infinity and NaN keep theirs
  const std::uint32_t sign = std::uint32_t{value.bits & 0x8000u} << 16;
  const std::uint32_t rest = std::uint32_t{value.bits & 0x7fffu} << 13;
  const std::uint32_t special = (value.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  const float scaled = __builtin_bit_cast(float, rest) * 0x1p112f;
  return __builtin_bit_cast(float, (__builtin_bit_cast(std::uint32_t, scaled) | special) | sign);
}

template <class T>
T from_float(float value);

template <>
STEPGRAPH_HD float from_float<float>(float value) {
  return value;
}

/// Round to nearest, ties to even; NaN stays NaN.
template <>
STEPGRAPH_HD bf16 from_float<bf16>(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
STEPGRAPH_HD f16 from_float<f16>(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds past 65504
  if (magnitude < 0x38800000u) {
    // a subnormal: adding 0.5 leaves the rounded bits at the low end of the mantissa
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (__builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace stepgraph
