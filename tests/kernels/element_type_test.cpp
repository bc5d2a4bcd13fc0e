#include "kernels/element_type.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace stepgraph;

TEST_CASE("every float16 survives the way to float32 and back") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      CHECK((bits & 0x7c00u) == 0x7c00u);
      CHECK(std::isnan(to_float(from_float<f16>(wide))));
    } else {
      REQUIRE(from_float<f16>(wide).bits == bits);
    }
  }
  CHECK(to_float(f16{0x3c00}) == 1.0f);
  CHECK(to_float(f16{0x0001}) == std::ldexp(1.0f, -24));
  CHECK(to_float(f16{0x7bff}) == 65504.0f);
}

TEST_CASE("rounding to 16 bits is to nearest, ties to even") {
  CHECK(from_float<f16>(1.0f + std::ldexp(1.0f, -11)).bits == 0x3c00);
  CHECK(from_float<f16>(1.0f + 3 * std::ldexp(1.0f, -11)).bits == 0x3c02);
  CHECK(from_float<f16>(65519.0f).bits == 0x7bff);
  CHECK(from_float<f16>(65520.0f).bits == 0x7c00);
  CHECK(from_float<f16>(std::ldexp(1.0f, -25)).bits == 0);
  CHECK(from_float<f16>(std::ldexp(3.0f, -25)).bits == 2);
  CHECK(from_float<bf16>(1.0f + std::ldexp(1.0f, -8)).bits == 0x3f80);
  CHECK(from_float<bf16>(1.0f + 3 * std::ldexp(1.0f, -8)).bits == 0x3f82);
  CHECK(std::isnan(to_float(from_float<bf16>(std::numeric_limits<float>::quiet_NaN()))));
}
