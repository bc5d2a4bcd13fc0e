#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// Parameters that nothing is wrong with, over memory that is not looked at.
struct plain_params {
  explicit plain_params(stream_ref at) : numbers(at, 64, 0), bytes(at, 4096, 0) {
    cache = {.data = bytes.data(), .pages = 2, .page_stride = 528, .page_shift = 2};
    set = {.live_tokens = numbers.data(),
           .tokens = 2,
           .loc = numbers.data(),
           .keys = bytes.data() + 2048,
           .scales = reinterpret_cast<const float*>(numbers.data()),
           .cache = cache};
    get = {.lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 8},
           .page_table = numbers.data(),
           .page_table_stride = 2,
           .page_columns = 2,
           .cache = cache,
           .keys = bytes.data() + 2048,
           .capacity = 4};
  }
  device_vector<std::int32_t> numbers;
  device_vector<std::uint8_t> bytes;
  index_k_cache cache;
  set_k_and_s_params set;
  get_k_and_s_params get;
};

}  // namespace

TEST_CASE("sparse: index-K store and gather refuse by name what the host can see") {
  const stream at(test_device());
  plain_params plain(at);
  const auto set_refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(set_k_and_s(at, plain.set), doctest::Contains(why), invalid_argument);
  };
  const auto get_refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(get_k_and_s(at, plain.get), doctest::Contains(why), invalid_argument);
  };
  CHECK_NOTHROW(get_k_and_s(at, plain.get));
  CHECK_NOTHROW(set_k_and_s(at, plain.set));
  SUBCASE("keys that are not fp8") {
    plain.set.cache.key_element_bytes = plain.get.cache.key_element_bytes = 2;
    set_refused("keys must be of 1 byte (fp8), got 2");
    get_refused("keys must be of 1 byte (fp8), got 2");
  }
  SUBCASE("scales that are not fp32") {
    plain.set.cache.scale_element_bytes = 2;
    set_refused("scales must be of 4 bytes (fp32), got 2");
  }
  SUBCASE("a short page stride") {
    plain.set.cache.page_stride = plain.get.cache.page_stride = 524;
    set_refused("page_stride 524 is less than a page's 528");
    get_refused("page_stride 524 is less than a page's 528");
  }
  SUBCASE("an odd page stride") {
    plain.get.cache.page_stride = 530;
    get_refused("page_stride must be a multiple of 4, got 530");
  }
  SUBCASE("a page size that is not supported") {
    plain.get.cache.page_shift = 11;
    get_refused("the page size must be a power of two from 1 to 1024, got 2^11");
  }
  SUBCASE("a narrow page table") {
    plain.get.lengths.cap = 9;
    get_refused("lengths.cap 9 is over the page table's 8 tokens");
  }
  SUBCASE("a table stride below its columns") {
    plain.get.page_table_stride = 1;
    get_refused("page_table_stride 1 is less than its 2 columns");
  }
  SUBCASE("sums that int32 cannot hold") {
    plain.get.page_columns = plain.get.page_table_stride = std::int64_t{1} << 29;
    plain.get.lengths.cap = INT32_MAX;
    plain.get.cu_seqlens_k = plain.numbers.data();
    get_refused("offer int64");
  }
  SUBCASE("nothing to write") {
    plain.get.keys = nullptr;
    get_refused("keys and scales are both null");
  }
  SUBCASE("keys not aligned") {
    plain.get.keys += 4;
    get_refused("keys is not aligned to 16 bytes");
  }
  SUBCASE("a short key stride") {
    plain.set.key_stride = 124;
    set_refused("key_stride must be a multiple of 4 and at least 128 bytes, got 124");
  }
}
