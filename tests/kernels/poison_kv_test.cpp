#include "kernels/step/poison_kv.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("poison_kv fills everything beyond the requests' tokens, and nothing else") {
  const stream at(test_device());
  reference::random_integers random(test_seed());
  for (int i = 0; i < test_rounds(20); ++i) {
    const int planes = static_cast<int>(random.between(1, 4)), pages = static_cast<int>(random.between(1, 9));
    const int page_size = 1 << random.below(4), token_bytes = 16 * static_cast<int>(random.between(1, 3));
    const int requests = static_cast<int>(random.between(1, 3)), gap = 16 * static_cast<int>(random.below(2));
    const int page_bytes = page_size * token_bytes, plane_stride = pages * page_bytes + gap;
    std::vector<std::int32_t> lengths;
    for (int r = 0; r < requests; ++r)
      lengths.push_back(static_cast<std::int32_t>(random.below(3 * page_size + 1)));
    std::vector<page_owner> owners;
    for (int page = 0; page < pages; ++page)
      owners.push_back({static_cast<std::int32_t>(random.between(-1, requests - 1)),
                        static_cast<std::int32_t>(random.below(4))});
    std::vector<unsigned char> want(std::size_t(planes) * plane_stride, 5);
    const device_vector<unsigned char> pool(at, want);
    for (int plane = 0; plane < planes; ++plane)
      for (int page = 0; page < pages; ++page)
        for (int token = 0; token < page_size; ++token) {
          const page_owner owner = owners[page];
          if (owner.request >= 0 && owner.index * page_size + token < lengths[owner.request]) continue;
          std::fill_n(want.begin() + plane * plane_stride + page * page_bytes + token * token_bytes,
                      token_bytes, 255);
        }
    const device_vector<page_owner> device_owners(at, owners);
    const device_vector<std::int32_t> device_lengths(at, lengths);
    poison_kv(at, {.pool = pool.data(),
                   .planes = planes,
                   .plane_stride = plane_stride,
                   .page_bytes = page_bytes,
                   .token_bytes = token_bytes,
                   .pages = pages,
                   .owners = device_owners.data(),
                   .seq_lens = device_lengths.data(),
                   .requests = requests});
    CHECK(pool.get() == want);
  }
  CHECK_THROWS_WITH_AS(poison_kv(at, {}), doctest::Contains("null"), invalid_argument);
}
