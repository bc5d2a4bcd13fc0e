#include "kernels/step/poison_kv.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/device_vector.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("poison_kv fills everything beyond the requests' tokens, and nothing else") {
  const stream at(test_device());
  reference::random_integers random(test_seed());
  for (int i = 0; i < test_rounds(20); ++i) {
    const int planes = static_cast<int>(random.between(1, 4)), columns = 4;
    const int shift = static_cast<int>(random.below(4)), page_size = 1 << shift;
    const int token_bytes = 16 * static_cast<int>(random.between(1, 3));
    const int requests = static_cast<int>(random.between(1, 3)), pages = requests * columns + 2;
    const int page_bytes = page_size * token_bytes, plane_stride = pages * page_bytes + 16 * (i % 2);
    // pages in any order, two of them nobody's
    std::vector<std::int32_t> order(pages - 1), table(requests * columns), lengths, open;
    for (int page = 1; page < pages; ++page) order[page - 1] = page;
    for (int n = pages - 1; n > 1; --n) std::swap(order[n - 1], order[random.below(n)]);
    std::copy_n(order.begin(), table.size(), table.begin());
    std::vector<int> live(pages, 0);
    for (int r = 0; r < requests; ++r) {
      lengths.push_back(static_cast<std::int32_t>(random.below(columns * page_size + 3)));
      open.push_back(random.one_in(3) ? 0 : 1);
      for (int c = 0; c < columns; ++c)
        if (open[r]) live[table[r * columns + c]] = std::clamp(lengths[r] - c * page_size, 0, page_size);
    }
    std::vector<unsigned char> want(std::size_t(planes) * plane_stride, 5);
    const device_vector<unsigned char> pool(at, want);
    for (int plane = 0; plane < planes; ++plane)
      for (int page = 0; page < pages; ++page)
        std::fill_n(want.begin() + plane * plane_stride + page * page_bytes + live[page] * token_bytes,
                    (page_size - live[page]) * token_bytes, 255);
    const device_vector<std::int32_t> device_table(at, table), device_lengths(at, lengths),
        device_open(at, open);
    const device_vector<std::int32_t> scratch(at, pages, -1);
    poison_kv(at, {.pool = pool.data(),
                   .planes = planes,
                   .plane_stride = plane_stride,
                   .page_bytes = page_bytes,
                   .token_bytes = token_bytes,
                   .pages = pages,
                   .source = {.table = device_table.data(),
                              .row_stride = columns,
                              .requests = requests,
                              .columns = columns,
                              .page_shift = shift,
                              .page_granular = true,
                              .pool_pages = pages},
                   .open = device_open.data(),
                   .seq_lens = device_lengths.data(),
                   .live_tokens = scratch.data()});
    CHECK(pool.get() == want);
  }
}
