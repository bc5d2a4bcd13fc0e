#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/sparse/index_k_cache.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/reference/sparse.hpp"
#include "tests/test_device.hpp"

/// Random inputs of the sparse-attention index kernels.
namespace stepgraph {

inline std::vector<std::int32_t> to_int32(const std::vector<std::int64_t>& values) {
  std::vector<std::int32_t> out;
  for (const std::int64_t value : values) out.push_back(static_cast<std::int32_t>(value));
  if (out.empty()) out.push_back(0);
  return out;
}

/// What no one may use: past every table, or far below it.
inline std::int64_t wild_index(reference::random_integers& random) {
  return random.one_in(2) ? 0x7ff00000 + random.below(4096) : -0x70000000 + random.below(4096);
}

/// Random bytes; among them are the patterns of NaN.
inline std::vector<std::uint8_t> random_bytes(reference::random_integers& random, std::int64_t count) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.below(256));
  return bytes;
}

/// A vector of bytes with canaries after it.
class output_bytes : public device_vector<std::uint8_t> {
 public:
  static constexpr std::uint8_t poison = 0xb3;
  output_bytes(stream_ref at, std::int64_t size) : device_vector(at, size + 32, poison) {}

  void expect(const reference::vector_output& want) const {
    const auto got = get();
    CHECK_MESSAGE(check_live(got, want).empty(), check_live(got, want));
    CHECK_MESSAGE(check_untouched(got, poison, want).empty(), check_untouched(got, poison, want));
  }
};

inline int log2_of(std::int64_t value) {
  int shift = 0;
  while ((std::int64_t{1} << shift) < value) ++shift;
  return shift;
}

inline index_k_cache device_cache(const reference::index_k_layout& layout, std::uint8_t* data) {
  return {
      .data = data, .pages = layout.pages, .page_stride = layout.stride(), .page_shift = log2_of(layout.P)};
}

/// A layout of pages of `P` tokens: dense, or with room between pages, aligned to 16 bytes or only to 4.
inline reference::index_k_layout random_layout(reference::random_integers& random, std::int64_t P,
                                               std::int64_t pages) {
  reference::index_k_layout layout{P, pages, 0};
  const std::int64_t dense = layout.stride();
  const std::int64_t more[] = {0, 16 - dense % 16, 4, 160 - dense % 16};
  layout.page_stride = dense + more[random.below(4)];
  return layout;
}

}  // namespace stepgraph
