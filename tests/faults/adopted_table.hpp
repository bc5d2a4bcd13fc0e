#pragma once

#include <algorithm>
#include <vector>

#include "runtime/step_executor.hpp"
#include "tests/device_vector.hpp"

namespace stepgraph {

/// An embedder's request table of one page a token or more, wild beyond each request's pages.
struct adopted_table {
  static constexpr std::int32_t wild = 0x7f7f7f7f;
  static constexpr int requests = 3;
  int columns, stride;
  device_vector<std::int32_t> table, seq_lens, last_token;

  adopted_table(stream_ref at, int columns, int extra, bool clean)
      : columns(columns),
        stride(columns + extra),
        table(at, std::size_t(requests) * stride, clean ? 0 : wild),
        seq_lens(at, requests, 0),
        last_token(at, requests, 0) {}

  /// Pages for `length` tokens of each request, none shared; the rest of each line wild, or as it was.
  void give(int length, int page_size, bool take_back = false) {
    std::vector<std::int32_t> entries = table.get();
    if (take_back) std::ranges::fill(entries, wild);
    const int pages = (length + page_size - 1) / page_size;
    for (int r = 0; r < requests; ++r)
      for (int i = 0; i < pages; ++i) entries[r * stride + i] = 1 + r * columns + i;
    table.set(entries);
  }
  adopted_requests view(int page_shift) const {
    return {.source = {.table = table.data(),
                       .row_stride = stride,
                       .requests = requests,
                       .columns = columns,
                       .page_shift = page_shift,
                       .page_granular = true,
                       .pool_pages = 0},
            .seq_lens = seq_lens.data(),
            .last_token = last_token.data()};
  }
};

}  // namespace stepgraph
