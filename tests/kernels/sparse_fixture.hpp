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

/// How an embedder counts lengths: as int32 or int64, all of them short of what is meant by a number, each by a
/// number of its own, by both or by neither. `number` picks one of the eight.
struct length_form {
  explicit length_form(std::uint64_t number)
      : wide(number % 2 == 1), delta(number / 2 % 2 == 1 ? 3 : 0), by_row(number / 4 % 2 == 1) {}
  bool wide;
  std::int32_t delta;
  bool by_row;
};

/// Lengths in that form; those of dead rows, and what belongs to them, are wild.
class device_lengths {
 public:
  device_lengths(stream_ref at, std::int64_t rows, length_form form)
      : form_(form), narrow_(at, rows, 0), wide_(at, rows, std::int64_t{0}), delta_(at, rows, 0) {}

  /// `len` [rows] is what kernels are to find; narrow ones are such that int32 holds them.
  void set(reference::random_integers& random, const std::vector<std::int64_t>& len, std::int64_t live) {
    std::vector<std::int64_t> given;
    std::vector<std::int32_t> delta;
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(len.size()); ++r) {
      delta.push_back(static_cast<std::int32_t>(r < live ? random.between(-2, 5) : wild_index(random)));
      const std::int64_t added = form_.delta + (form_.by_row ? delta[r] : 0);
      given.push_back(r < live ? len[r] - added : wild_index(random));
    }
    narrow_.set(to_int32(given));
    wide_.set(given);
    delta_.set(delta);
  }
  row_lengths view(const std::int32_t* live_rows, std::int64_t cap) const {
    return {.live_rows = live_rows,
            .rows = static_cast<std::int32_t>(narrow_.size()),
            .seq_lens = form_.wide ? index_view(wide_.data()) : index_view(narrow_.data()),
            .delta = form_.delta,
            .delta_by_row = form_.by_row ? delta_.data() : nullptr,
            .cap = cap};
  }

 private:
  length_form form_;
  device_vector<std::int32_t> narrow_;
  device_vector<std::int64_t> wide_;
  device_vector<std::int32_t> delta_;
};

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
