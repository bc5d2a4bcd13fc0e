#include "runtime/page_allocator.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/bucket_policy.hpp"
#include "runtime/request_table.hpp"

using namespace stepgraph;

TEST_CASE("the sink page is never handed out, every other page once") {
  page_allocator pool(5);
  CHECK(pool.free_pages() == 4);
  std::vector<bool> taken(5);
  for (int i = 0; i < 4; ++i) {
    const std::int32_t page = pool.take();
    CHECK(page != 0);
    CHECK_FALSE(taken[page]);
    taken[page] = true;
  }
  CHECK(pool.free_pages() == 0);
}

TEST_CASE("abort-reuse: released pages come back only once their fence is done") {
  page_allocator pool(3);
  const std::vector<std::int32_t> first{pool.take()}, second{pool.take()};
  pool.release(first, 7);
  pool.release(second, 9);
  CHECK(pool.waiting_pages() == 2);
  pool.reclaim(6);
  CHECK(pool.free_pages() == 0);
  pool.reclaim(8);
  CHECK(pool.free_pages() == 1);
  CHECK(pool.take() == first.front());
  pool.reclaim(9);
  CHECK(pool.take() == second.front());
}

TEST_CASE("a request grows by the pages its tokens need, and says so in patches") {
  request_table table(2, 64, 4, 9);
  const request_id request = table.open();
  page_patch patches[8];
  CHECK(table.fresh(request));
  CHECK(table.pages_needed(request, 16) == 1);
  CHECK(table.grow(request, 16, patches) == 1);
  CHECK(table.fresh(request));  // until a step with its tokens is under way
  table.note_step(request, 16);
  CHECK_FALSE(table.fresh(request));
  CHECK(patches[0].index == 0);
  CHECK(table.grow(request, 0, patches) == 0);
  CHECK(table.grow(request, 33, patches) == 3);
  CHECK(patches[2].index == 3);
  CHECK(table.length_bound(request) == 49);
  CHECK(table.pages().free_pages() == 4);
  table.close(request, 1);
  CHECK_THROWS_AS(table.expect_open(request), invalid_argument);
  table.pages().reclaim(1);
  CHECK(table.pages().free_pages() == 8);
}

TEST_CASE("coverage: every count up to the largest maps to the smallest bucket that holds it") {
  const bucket_policy powers = bucket_policy::powers_of_two(100);
  CHECK(powers.largest() == 128);
  for (int count = 1; count <= 128; ++count) {
    const int bucket = powers.bucket_for(count);
    CHECK(bucket >= count);
    CHECK((bucket == 1 || bucket / 2 < count));
  }
  CHECK_THROWS_WITH_AS(powers.bucket_for(129), doctest::Contains("129 is over the largest bucket, 128"),
                       invalid_argument);
  CHECK(bucket_policy::exactly({3, 5}).bucket_for(4) == 5);
  const bucket_policy more = bucket_policy::powers_of_two(8).with(std::vector<int>{5, 3, 4, 0, -1, 9});
  CHECK(std::ranges::equal(more.sizes(), std::vector<int>{1, 2, 3, 4, 5, 8}));
  CHECK_THROWS_AS(bucket_policy::exactly({5, 3}), invalid_argument);
  CHECK_THROWS_AS(bucket_policy::exactly({0}), invalid_argument);
}

TEST_CASE("growth for a step that was not launched is taken back") {
  request_table table(1, 64, 4, 9);
  const request_id request = table.open();
  page_patch patches[8];
  table.grow(request, 16, patches);
  const line_growth before = table.state_of(request);
  CHECK(table.grow(request, 30, patches) == 2);
  table.shrink(before, 5);
  CHECK(table.length_bound(request) == 16);
  CHECK(table.pages().free_pages() == 5);
  table.pages().reclaim(5);
  CHECK(table.pages().free_pages() == 7);
  CHECK(table.grow(request, 16, patches) == 1);
  CHECK(patches[0].index == 1);
}

TEST_CASE("the bound settles with the results to what later steps may add, unless the line has a new owner") {
  request_table table(1, 64, 4, 9);
  request_id request = table.open();
  page_patch patches[8];
  table.grow(request, 9, patches);
  const line_mark first = table.note_step(request, 9);
  table.grow(request, 9, patches);
  const line_mark second = table.note_step(request, 9);
  CHECK(table.length_bound(request) == 18);
  table.settle(request, first, 3);
  CHECK(table.length_bound(request) == 12);
  table.settle(request, second, 4);
  CHECK(table.length_bound(request) == 4);
  table.settle(request, first, 3);  // again: it can only say less
  CHECK(table.length_bound(request) == 4);
  table.close(request, 2);
  request = table.open();
  table.settle(request, second, 4);
  CHECK(table.length_bound(request) == 0);
}

TEST_CASE("growth goes no further than the context") {
  request_table table(1, 20, 4, 9);
  const request_id request = table.open();
  page_patch patches[8];
  CHECK(table.grow(request, 18, patches) == 2);
  const line_mark mark = table.note_step(request, 18);
  CHECK(table.grow(request, 30, patches) == 0);
  CHECK(table.length_bound(request) == 20);
  CHECK(table.capacity(request) == 32);
  table.settle(request, mark, 10);
  CHECK(table.length_bound(request) == 20);
}
