#pragma once

#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// Where a request's tokens lie in the paged KV cache. Two forms: token-granular (an entry is the KV slot of
/// one token) and page-granular (an entry is the page of `2^page_shift` tokens). Non-owning; the addresses
/// are baked into a captured graph, the entries may change between replays.
struct page_source {
  const std::int32_t* table = nullptr;  // [requests, columns], rows `row_stride` entries apart
  std::int64_t row_stride = 0;          // entries
  std::int32_t requests = 0;            // lines of the table
  std::int64_t columns = 0;             // entries in a line: tokens, or pages if page_granular
  std::int32_t page_shift = 0;          // log2 of the page size P, 0..10
  bool page_granular = false;
  std::int64_t pool_pages = 0;  // pages of the KV pool; an entry at or past it is out of range. 0: unknown

  STEPGRAPH_HD bool has_request(std::int64_t request) const { return request >= 0 && request < requests; }

  /// Tokens that a line can name.
  STEPGRAPH_HD std::int64_t token_columns() const { return page_granular ? columns << page_shift : columns; }

  /// Pages that a line can name.
  STEPGRAPH_HD std::int64_t page_columns() const {
    return page_granular ? columns : pages_of(columns, page_shift);
  }

  /// Page `index` of `request`, or -1 where the entry is negative or outside the pool. Both must be in range.
  STEPGRAPH_HD std::int64_t page(std::int64_t request, std::int64_t index) const {
    const std::int32_t* line = table + request * row_stride;
    const std::int32_t entry = page_granular ? line[index] : line[index << page_shift];
    return checked_page(entry);
  }

  /// KV slot of token `position` of `request`, or -1 likewise.
  STEPGRAPH_HD std::int64_t slot(std::int64_t request, std::int64_t position) const {
    const std::int32_t* line = table + request * row_stride;
    const std::int64_t in_page = position & ((std::int64_t{1} << page_shift) - 1);
    if (page_granular) {
      const std::int64_t found = checked_page(line[position >> page_shift]);
      return found < 0 ? -1 : (found << page_shift) + in_page;
    }
    const std::int64_t entry = line[position];
    return entry < 0 || (pool_pages > 0 && entry >= pool_pages << page_shift) ? -1 : entry;
  }

  /// The same, -1 as well where the request is out of range.
  STEPGRAPH_HD std::int64_t known_slot(std::int64_t request, std::int64_t position) const {
    return has_request(request) ? slot(request, position) : -1;
  }

  /// The table's entry for that token: its slot, or its page.
  STEPGRAPH_HD std::int32_t entry(std::int64_t request, std::int64_t position) const {
    return line(request)[page_granular ? position >> page_shift : position];
  }

  /// The entry that `slot` came from.
  STEPGRAPH_HD std::int64_t entry_of(std::int64_t slot) const {
    return page_granular ? slot >> page_shift : slot;
  }

  /// Line of `request`, which must be in range.
  STEPGRAPH_HD const std::int32_t* line(std::int64_t request) const {
    const std::int64_t offset = request * row_stride;
    return table + (guard_off("wrap-32") ? static_cast<std::int32_t>(offset) : offset);
  }

  /// Shift between columns of pages and columns of the table.
  STEPGRAPH_HD int column_shift() const { return page_granular ? 0 : page_shift; }

  /// `entry` of the table as a page, or -1 where it is negative or outside the pool.
  STEPGRAPH_HD std::int64_t checked_page(std::int64_t entry) const {
    const std::int64_t found = page_granular || entry < 0 ? entry : entry >> page_shift;
    return found < 0 || (pool_pages > 0 && found >= pool_pages) ? -1 : found;
  }
};

/// A slot map or a page map in device memory; may change between replays. A negative entry means unmapped.
struct index_map {
  index_view entry{};     // [size], or null: no map
  std::int64_t size = 0;  // entries

  STEPGRAPH_HD explicit operator bool() const { return entry.data != nullptr; }
  STEPGRAPH_HD bool has(std::int64_t index) const { return index >= 0 && index < size; }
  /// -1 where `index` is negative, past the map, or unmapped.
  STEPGRAPH_HD std::int64_t operator[](std::int64_t index) const {
    const std::int64_t found = has(index) ? entry[index] : -1;
    return found < 0 ? -1 : found;
  }
};

}  // namespace stepgraph
