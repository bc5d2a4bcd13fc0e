#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

namespace stepgraph {

/// Division by a number that the host knows: a product with ceil(2^64 / by), whose upper half is the quotient of
/// every 32-bit number (D. Lemire, O. Kaser, N. Kurz, "Faster remainder by direct computation", 2019).
class divisor {
 public:
  explicit divisor(std::uint32_t by) : inverse_(by > 1 ? ~std::uint64_t{0} / by + 1 : 0) {}

  STEPGRAPH_HD std::uint32_t operator()(std::uint32_t a) const {
#if defined(__CUDA_ARCH__)
    const auto quotient = static_cast<std::uint32_t>(__umul64hi(inverse_, a));
#else
    const auto low = (inverse_ & 0xffffffffu) * a >> 32, high = (inverse_ >> 32) * a;
    const auto quotient = static_cast<std::uint32_t>((high + low) >> 32);
#endif
    return inverse_ == 0 ? a : quotient;
  }

 private:
  std::uint64_t inverse_;
};

}  // namespace stepgraph
