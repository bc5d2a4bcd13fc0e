#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/guard_cases.hpp"
#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"

/// Inputs of the sparse-attention index kernels' speed table.
namespace stepgraph::bench {

struct gather_case {
  std::string name;
  std::vector<std::int32_t> lengths;  // tokens of each row
  std::int64_t width;                 // tokens captured
  double bar;                         // microseconds asked for, 0: none
};

/// An index-K gather of pages of 64 tokens scattered over the cache.
struct gather_inputs {
  gather_inputs(stream_ref at, const gather_case& shape);

  get_k_and_s_params params() const;
  std::int64_t bytes() const { return 2 * 132 * tokens; }  // read and written

  static constexpr std::int64_t page = 64;
  std::int64_t rows, width, tokens, pages;
  device_array<std::int32_t> live_rows, lengths, table, sums;
  device_array<std::uint8_t> cache, keys;
  device_array<std::uint32_t> scales;
};

/// A store of `tokens` keys at slots scattered over a cache of pages of 64 tokens.
struct store_inputs {
  store_inputs(stream_ref at, std::int64_t tokens);

  set_k_and_s_params params() const;
  std::int64_t bytes() const { return tokens * (2 * 132 + 8); }  // slots, keys and scales read, and written

  std::int64_t tokens;
  device_array<std::int32_t> live_tokens;
  device_array<std::int64_t> loc;
  device_array<std::uint8_t> keys, cache;
  device_array<float> scales;
};

struct top_k_case {
  std::string name;
  std::vector<std::int32_t> counts;  // query tokens of each row
  int topk;
  std::int64_t width;  // of the table
  double bar;
  bool decode;        // a line a token, no row_of
  std::int64_t live;  // tokens that the indices name
};

struct top_k_inputs {
  top_k_inputs(stream_ref at, const top_k_case& shape);

  top_k_to_slots_params params() const;
  /// Indices, and slots twice: an entry, and what is written.
  std::int64_t bytes() const { return tokens * topk * 12; }

  std::int64_t rows, tokens, topk, width;
  bool decode;
  device_array<std::int32_t> live_tokens, row_of, indices, table, slots;
};

struct combine_case {
  std::string name;
  std::int64_t rows, tokens_a_row;
  int topk, window;
  double bar;
};

struct combine_inputs {
  combine_inputs(stream_ref at, const combine_case& shape);

  combine_top_k_and_window_params params() const;
  std::int64_t bytes() const { return tokens * (topk + params().padded_width() + 1) * 4; }

  std::int64_t rows, tokens;
  int topk, window;
  device_array<std::int32_t> live_rows, starts, lengths, gathered, compressed_base, swa_base, topk_indices,
      indices, length;
};

}  // namespace stepgraph::bench
