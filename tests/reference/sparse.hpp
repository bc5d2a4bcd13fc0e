#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tests/reference/batch.hpp"
#include "tests/reference/kv_indices.hpp"

namespace stepgraph::reference {

/// Index-K cache: one buffer line per page, P * 128 bytes of fp8 keys, then P fp32 scales.
struct index_k_layout {
  static constexpr std::int64_t key_bytes = 128;
  std::int64_t P = 64;
  std::int64_t pages = 0;
  std::int64_t page_stride = 0;  // bytes between lines; 0: dense, P * 132

  std::int64_t stride() const { return page_stride > 0 ? page_stride : P * (key_bytes + 4); }
  /// First byte of a slot's key, and of its scale.
  std::int64_t key_at(std::int64_t slot) const { return slot / P * stride() + slot % P * key_bytes; }
  std::int64_t scale_at(std::int64_t slot) const {
    return slot / P * stride() + P * key_bytes + slot % P * 4;
  }
  /// Bytes of the whole buffer.
  std::int64_t bytes() const { return pages * stride(); }
};

struct set_k_and_s_output {
  vector_output buffer;       // [bytes]; bytes that two tokens of one slot write differently are open
  std::vector<fault> faults;  // rows are tokens here
};

/// Stores live tokens' keys and scales by slot.
/// `loc` [T or more], `keys` bytes [T * 128], `scales` bits of fp32 [T].
set_k_and_s_output set_k_and_s(const index_k_layout& layout, std::int64_t T,
                               const std::vector<std::int64_t>& loc, const std::vector<std::uint8_t>& keys,
                               const std::vector<std::uint32_t>& scales);

struct index_k_gather {
  index_k_layout layout;
  std::int64_t n = 0;             // live rows
  std::vector<std::int64_t> len;  // [B]; not read for dead rows
  input_table table;              // a line a row, entries are pages
  std::int64_t capacity = 0;      // packed rows the outputs hold
  std::optional<index_map> page_map{};
};

struct get_output {
  vector_output keys;    // bytes [capacity * 128]; empty for get_s
  vector_output scales;  // bits of fp32 [capacity]; empty for get_k
  std::vector<fault> faults;
};

/// Gather len[r] tokens a row out of `buffer` into packed rows. A token whose page is missing leaves its
/// packed row open; unless the page map has none for it, it is reported.
get_output get_k(const index_k_gather& in, const std::vector<std::uint8_t>& buffer);
get_output get_s(const index_k_gather& in, const std::vector<std::uint8_t>& buffer);
get_output get_k_and_s(const index_k_gather& in, const std::vector<std::uint8_t>& buffer);

struct top_k_to_slots_input {
  std::int64_t T = 0;                // live tokens
  std::vector<std::int64_t> row_of;  // [C]; not read for dead tokens
  std::int64_t topk = 0;             // columns of the indices and of the output
  std::function<std::int64_t(std::int64_t t, std::int64_t i)> index;
  input_table table;      // token-granular: one slot a column
  bool expanded = false;  // a line a token instead of a line a row
};

struct top_k_to_slots_output {
  table_output slots;           // [C, topk]
  vector_output count;          // [C] non-negative entries
  vector_output last_plus_one;  // [C] index of the last non-negative entry + 1, at least 1; 0 for dead tokens
  std::vector<fault> faults;    // rows are tokens here
};

/// Looks top-k token indices up in a table of slots.
top_k_to_slots_output top_k_to_slots(const top_k_to_slots_input& in);

struct combine_input {
  std::int64_t B = 0, C = 0, n = 0;
  std::vector<std::int64_t> query_start_loc;  // [B + 1]; only differences to its first entry count
  std::vector<std::int64_t> len;              // [B]
  std::int64_t cap = 0;                       // of a length
  std::vector<std::int64_t> gather_len;       // [B]
  std::vector<std::int64_t> compressed_base;  // [B]
  std::vector<std::int64_t> swa_base;         // [B]
  std::int64_t ratio = 1;
  std::int64_t window = 0;
  std::int64_t topk = 0;  // 0: window only
  std::function<std::int64_t(std::int64_t t, std::int64_t i)>
      index;                 // at least topk wide; not read if topk is 0
  std::int64_t columns = 0;  // of the output, at least the padded width; 0: as many
  tail_rule tail;

  /// topk + window, rounded up to 128.
  std::int64_t padded_width() const { return (topk + window + 127) / 128 * 128; }
};

struct combine_output {
  table_output indices;  // [C, columns]
  vector_output length;  // [C]
  std::vector<fault> faults;
};

/// Compressed top-k indices followed by the window's, per token.
combine_output combine_top_k_and_window(const combine_input& in);

struct window_token_ids_options {
  std::int64_t window = 1;
  index_map full_to_swa;
  std::int64_t capacity = 0;
  std::int64_t skip = -1;
};

struct window_token_ids_output {
  vector_output gather_len;  // [B] g
  vector_output offsets;     // [B + 1] cumsum0(g)
  vector_output ids;         // [capacity]
  std::vector<fault> faults;
};

/// Window-pool slots of the tokens that a row's queries can see: the last min(len, E + w - 1).
window_token_ids_output window_token_ids(const batch& in, const window_token_ids_options& options);

}  // namespace stepgraph::reference
