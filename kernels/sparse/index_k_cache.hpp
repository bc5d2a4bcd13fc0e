#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// The paged cache of an indexer's keys: a line a page, first its keys, P x 128 bytes of fp8, then their
/// scales, P fp32. Non-owning; address and numbers are baked into a capture, contents are not. Keys move 16
/// bytes at a time where base, stride and page size allow (any page size from 4 on in a dense cache), else 4.
struct index_k_cache {
  static constexpr std::int32_t key_bytes = 128;
  static constexpr std::int32_t scale_bytes = 4;

  std::uint8_t* data = nullptr;  // [pages, page_stride] bytes, aligned to 4
  std::int64_t pages = 0;
  std::int64_t page_stride = 0;          // bytes between pages, a multiple of 4, at least P * 132
  std::int32_t page_shift = 6;           // log2 of the page size P, 0..10
  std::int32_t key_element_bytes = 1;    // of what the embedder keeps there: 1 is fp8, others are refused
  std::int32_t scale_element_bytes = 4;  // 4 is fp32, others are refused

  STEPGRAPH_HD std::int64_t slots() const { return pages << page_shift; }
  /// First byte of the key and of the scale of place `in_page` of a page.
  STEPGRAPH_HD std::int64_t key_at(std::int64_t page, std::int64_t in_page) const {
    return page * page_stride + in_page * key_bytes;
  }
  STEPGRAPH_HD std::int64_t scale_at(std::int64_t page, std::int64_t in_page) const {
    return page * page_stride + (std::int64_t{key_bytes} << page_shift) + in_page * scale_bytes;
  }
};

/// Stores the keys and scales of a step's live tokens by slot. A negative slot stores nothing; one past the
/// cache stores nothing and is reported, with the token as its row. Two tokens of one slot: either stays.
struct set_k_and_s_params {
  const std::int32_t* live_tokens = nullptr;  // T, one number in device memory
  std::int32_t tokens = 0;                    // C, captured
  index_view loc{};                           // [C] slots, int32 or int64
  const std::uint8_t* keys = nullptr;         // [C, 128] bytes, tokens `key_stride` apart, aligned to 4
  std::int64_t key_stride = 128;              // bytes, a multiple of 4
  const float* scales = nullptr;              // [C]
  index_k_cache cache{};                      // written
  fault_sink faults{};
};

/// Gathers len[r] tokens a row out of the cache into packed rows: token x of row r, which lies in page
/// page_table[r, x / P], goes to packed row cu_seqlens_k[r] + x. `get_k` is this with `scales` null, `get_s`
/// with `keys` null. A token whose page is negative or past the cache (reported) becomes zeros; packed rows
/// past the capacity are not written, and their rows reported. There is no `tail`: what lies past packed row
/// cu_seqlens_k[rows] is undefined.
struct get_k_and_s_params {
  row_lengths lengths{};                     // cap is at most page_columns * P
  const std::int32_t* page_table = nullptr;  // [rows, page_columns] pages
  std::int64_t page_table_stride = 0;        // entries
  std::int64_t page_columns = 0;
  index_map page_map{};             // virtual page to physical page, or null
  index_k_cache cache{};            // read
  index_sink cu_seqlens_k{};        // out [rows + 1] or null; int64 where rows * cap passes 2^31 - 1
  std::uint8_t* keys = nullptr;     // out [capacity, 128] bytes, aligned to 16, or null
  std::uint32_t* scales = nullptr;  // out [capacity] bits of fp32, or null
  std::int64_t capacity = 0;        // packed rows that the outputs hold
  /// Packed rows, from the first on, whose keys stay in a GPU's L2 cache for whoever reads them; all other
  /// accesses are the first to leave it. -1: as many as two fifths of the cache hold.
  std::int64_t kept = -1;
  fault_sink faults{};
};

/// Enqueue the ops: one launch each. Throw `invalid_argument` naming the field that cannot be.
void set_k_and_s(stream_ref at, const set_k_and_s_params& params);
void get_k_and_s(stream_ref at, const get_k_and_s_params& params);

}  // namespace stepgraph
