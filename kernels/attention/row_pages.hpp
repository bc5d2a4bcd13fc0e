#pragma once

#include <cstdint>

#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::detail {

/// Page entries, unsigned, that are pages of the pool lie below.
STEPGRAPH_HD unsigned page_limit(const kv_pages_view& cache) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  return static_cast<unsigned>(cache.pages > 0 && cache.pages < most ? cache.pages : most);
}

/// The list of a row's cached pages, and how many tokens it has room for.
struct row_pages {
  const std::int32_t* entries;
  std::int64_t capacity;

  STEPGRAPH_HD static row_pages of(const paged_attention_params& p, int row) {
    if (!p.page_indptr.data)
      return {p.page_table + row * p.page_table_stride, p.page_columns << p.page_shift};
    const std::int64_t begin = clamp(p.page_indptr[row], 0, p.page_entries);
    const std::int64_t end = clamp(p.page_indptr[row + 1], begin, p.page_entries);
    return {p.page_table + begin, clamp(end - begin, 0, p.page_columns) << p.page_shift};
  }

 private:
  STEPGRAPH_HD static std::int64_t clamp(std::int64_t value, std::int64_t least, std::int64_t most) {
    return value < least ? least : value > most ? most : value;
  }
};

}  // namespace stepgraph::detail
