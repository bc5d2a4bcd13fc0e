#include "tests/reference/philox.hpp"

namespace stepgraph::reference {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9u;  // golden ratio
      key[1] += 0xBB67AE85u;  // sqrt(3) - 1
    }
    const std::uint64_t left = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57u} * counter[2];
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x & 0xffffffffu); };
    const std::uint32_t word_0 = high(right) ^ counter[1] ^ key[0];
    const std::uint32_t word_2 = high(left) ^ counter[3] ^ key[1];
    counter = {word_0, low(right), word_2, low(left)};
  }
  return counter;
}

double uniform(std::uint64_t seed, std::uint64_t request, std::uint32_t position, std::uint32_t purpose,
               std::uint32_t node) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x & 0xffffffffu); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto words =
      philox({position, (purpose << 24) | node, low(request), high(request)}, {low(seed), high(seed)});
  return static_cast<double>(words[0] / 256) / 16777216.0;
}

}  // namespace stepgraph::reference
