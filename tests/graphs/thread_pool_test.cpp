#include "graphs/thread_pool.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "graphs/error.hpp"

namespace {

using stepgraph::thread_pool;
using ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

ranges ranges_of(thread_pool& pool, std::int64_t count, std::int64_t grain) {
  std::mutex guard;
  ranges seen;
  pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    std::lock_guard lock(guard);
    seen.emplace_back(begin, end);
  });
  std::sort(seen.begin(), seen.end());
  return seen;
}

TEST_CASE("thread_pool: ranges cover everything once, are long enough and the same each time") {
  for (int threads : {1, 2, 3, 7}) {
    thread_pool pool(threads);
    CHECK(pool.size() == threads);
    for (std::int64_t count : {1, 2, 5, 31, 64, 1000, 49152}) {
      for (std::int64_t grain : {1, 2, 16, 100000}) {
        CAPTURE(threads);
        CAPTURE(count);
        CAPTURE(grain);
        const ranges seen = ranges_of(pool, count, grain);
        std::int64_t next = 0;
        for (const auto& [begin, end] : seen) {
          CHECK(begin == next);
          CHECK((end - begin >= grain || end == count));
          next = end;
        }
        CHECK(next == count);
        CHECK(ranges_of(pool, count, grain) == seen);
      }
    }
  }
}

TEST_CASE("thread_pool: nothing to do runs nothing") {
  thread_pool pool(2);
  pool.parallel_for(0, 1, [](std::int64_t, std::int64_t) { FAIL("no range was asked for"); });
}

TEST_CASE("thread_pool: zero threads asks for the cores there are; bad numbers are refused") {
  CHECK(thread_pool().size() >= 1);
  CHECK(thread_pool::shared().size() >= 1);
  CHECK_THROWS_AS(thread_pool(-1), stepgraph::invalid_argument);
  thread_pool pool(2);
  const auto nothing = [](std::int64_t, std::int64_t) {};
  CHECK_THROWS_AS(pool.parallel_for(-1, 1, nothing), stepgraph::invalid_argument);
  CHECK_THROWS_AS(pool.parallel_for(1, 0, nothing), stepgraph::invalid_argument);
}

TEST_CASE("thread_pool: what one job writes the next one reads, over many short jobs") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  for (int threads : {2, 4}) {
    thread_pool pool(threads);
    std::vector<std::int64_t> values(257, 0);  // plain memory: the sanitizer sees a missing hand-over
    for (int job = 0; job < 5000; ++job) {
      pool.parallel_for(std::ssize(values), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++values[i];
      });
      // pauses on both sides of the spin time: workers asleep, spinning and between the two
      if (job % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    CHECK(std::all_of(values.begin(), values.end(), [](std::int64_t value) { return value == 5000; }));
  }
}

TEST_CASE("thread_pool: an exception comes back after every range has ended, and the pool goes on") {
  for (int threads : {1, 2, 4}) {
    thread_pool pool(threads);
    for (int job = 0; job < 50; ++job) {
      std::atomic<std::int64_t> done{0};
      const std::size_t parts = ranges_of(pool, 400, 1).size();
      std::atomic<std::size_t> ended{0};
      CHECK_THROWS_AS(pool.parallel_for(400, 1,
                                        [&](std::int64_t begin, std::int64_t end) {
                                          ++ended;
                                          if (begin <= 123 && 123 < end) throw std::out_of_range("123");
                                          done += end - begin;
                                        }),
                      std::out_of_range);
      CHECK(ended == parts);
      CHECK(done < 400);
      std::atomic<std::int64_t> sum{0};
      pool.parallel_for(400, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      CHECK(sum == 400);
    }
  }
}

TEST_CASE("thread_pool: a call from inside a body runs inline on the same thread") {
  thread_pool pool(3);
  thread_pool other(2);
  std::atomic<int> strays{0};
  std::atomic<std::int64_t> sum{0};
  pool.parallel_for(12, 1, [&](std::int64_t begin, std::int64_t end) {
    const auto here = std::this_thread::get_id();
    for (thread_pool* inner : {&pool, &other}) {
      inner->parallel_for(100, 1, [&](std::int64_t first, std::int64_t last) {
        strays += std::this_thread::get_id() != here;
        sum += (last - first) * (end - begin);
      });
    }
  });
  CHECK(strays == 0);
  CHECK(sum == 2 * 12 * 100);
}

TEST_CASE("thread_pool: callers on several threads take turns") {
  thread_pool pool(3);
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int job = 0; job < 300; ++job) {
        pool.parallel_for(50, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(sum == 4 * 300 * 50);
}

TEST_CASE("thread_pool: a long range makes the caller sleep, and it is woken") {
  thread_pool pool(2);
  for (int job = 0; job < 20; ++job) {
    std::atomic<int> slept{0};
    pool.parallel_for(2, 1, [&](std::int64_t begin, std::int64_t end) {
      if (begin == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      slept += static_cast<int>(end - begin);
    });
    CHECK(slept == 2);
  }
}

}  // namespace
