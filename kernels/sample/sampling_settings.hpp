#pragma once

#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/row_lengths.hpp"
#include "kernels/sample/philox.hpp"

namespace stepgraph {

/// How one request's tokens are chosen. 32 bytes, so that a row reads one sector.
struct sampling_settings {
  float temperature = 0.0f;   // 0: greedy. The device also takes a negative one or a NaN as 0
  std::int32_t top_k = 0;     // 1: greedy; not positive or over the vocabulary: off
  float top_p = 1.0f;         // 1 or more (or NaN): off; the most probable token always stays
  float min_p = 0.0f;         // not positive (or NaN): off; over 1 is taken as 1
  std::uint64_t seed = 0;     // the key of the request's random numbers
  std::uint64_t request = 0;  // a stable identity, never a line of a pool
};

/// Refuses by name what cannot be meant. Throws `invalid_argument`.
void check(const sampling_settings& settings);

/// The settings of a step's rows, in device memory; they may change between replays.
struct sampling_view {
  const sampling_settings* settings = nullptr;  // [requests], or [rows] where `requests` is null
  index_view requests{};   // [rows] line of each row in `settings`, or null: the row itself
  std::int32_t count = 0;  // lines of `settings`

  STEPGRAPH_HD std::int64_t line(int row) const { return requests.data ? requests[row] : row; }
  STEPGRAPH_HD bool has(std::int64_t line) const { return line >= 0 && line < count; }
};

STEPGRAPH_HD bool is_greedy(const sampling_settings& s) {
  return !(s.temperature > 0.0f) || s.top_k == 1;
}

STEPGRAPH_HD random_stream random_of(const sampling_settings& s) {
  return {s.seed, s.request};
}

/// The tokens that each query token's successor may be: a bit mask per line, applied to the logits before
/// anything else. Bit v mod 32 of word v / 32 allows token v.
struct allowed_view {
  const std::uint32_t* words = nullptr;  // [lines, ceil(vocab_size / 32)], or null: all are allowed
  std::int64_t stride = 0;               // words between lines
};

}  // namespace stepgraph
