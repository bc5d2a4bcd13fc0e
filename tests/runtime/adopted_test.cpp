// What an executor may adopt from its embedder.
#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/filling_step.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;
using namespace stepgraph::filling_step;

TEST_CASE("stream, memory, KV cache and request table may be the embedder's") {
  const stream mine(test_device());
  const int requests = 3, pages = 10;
  std::vector<std::int32_t> table(requests * 64, -1);
  for (int p = 0; p < 4; ++p) table[64 + p] = 4 + p;  // request 1: page size 1 table of slots
  for (int t = 0; t < 16; ++t) table[64 + t] = 4 * (3 + t / 4) + t % 4;
  const device_vector<std::int32_t> slots(mine, table), seq_lens(mine, {0, 5, 0}),
      last_token(mine, {0, 9, 0});
  const buffer pool(device_memory(test_device()), kv_page_bytes(layout, 4) * pages);
  mine.ref().fill(pool.data(), 0, pool.bytes());
  class counting final : public memory_resource {
   public:
    device where() const noexcept override { return test_device(); }
    int allocations = 0;

   private:
    void* do_allocate(std::size_t bytes) override {
      ++allocations;
      return device_memory(where()).allocate(bytes);
    }
    void do_deallocate(void* pointer, std::size_t bytes) noexcept override {
      device_memory(where()).deallocate(pointer, bytes);
    }
  } memory;
  const device_vector<std::int32_t> seen(mine, 8, 0);
  step_definition step = filling(1);
  step.body = [&, body = step.body](const step_context& context) {
    body(context);
    context.stream.copy(seen.data(), context.token_ids, 4);
    context.stream.copy(seen.data() + 1, context.out_cache_loc, 4);
    // with nothing live, as in the warm-up, the table is undefined
    if (context.stream.is_capturing()) context.stream.copy(seen.data() + 2, context.page_table, 8);
  };
  step_executor executor(test_device(), small_limits(), layout, {step},
                         {.stream = mine.ref(),
                          .memory = &memory,
                          .kv_cache = make_kv_cache(layout, 4, pages, {pool.data(), pool.bytes()}),
                          .requests = adopted_requests{.source = {.table = slots.data(),
                                                                  .row_stride = 64,
                                                                  .requests = requests,
                                                                  .columns = 64,
                                                                  .page_shift = 2,
                                                                  .pool_pages = pages},
                                                       .seq_lens = seq_lens.data(),
                                                       .last_token = last_token.data()}});
  CHECK(memory.allocations == 2);  // what lasts, and what each step makes anew
  CHECK(executor.stream() == mine.ref());
  executor.capture();
  const std::vector<step_row> rows{{.request = 1}};
  CHECK(executor.wait(*executor.replay(step_kind::decode, rows))[0].length == 6);
  CHECK(seq_lens.get() == std::vector<std::int32_t>{0, 6, 0});
  CHECK(last_token.get() == std::vector<std::int32_t>{0, 0x01010101, 0});
  const auto got = seen.get();
  CHECK(got[0] == 9);
  CHECK(got[1] == 4 * 4 + 1);
  CHECK(got[2] == 3);
  CHECK(got[3] == 4);
  CHECK_THROWS_WITH_AS(executor.open(), doctest::Contains("embedder's"), invalid_argument);
}

TEST_CASE(
    "a line of an adopted table is another text's once it is restarted, though the text before has ended") {
  const stream mine(test_device());
  const device_vector<std::int32_t> pages(mine, 2, 1);
  const device_vector<std::int32_t> seq_lens(mine, 2, 0), last_token(mine, 2, 5);
  const auto adopted = adopted_requests{.source = {.table = pages.data(),
                                                   .row_stride = 1,
                                                   .requests = 2,
                                                   .columns = 1,
                                                   .page_shift = 6,
                                                   .page_granular = true},
                                        .seq_lens = seq_lens.data(),
                                        .last_token = last_token.data()};
  step_limits limits = small_limits();
  limits.max_requests = 2;
  limits.max_context = 64;
  limits.page_size = 64;
  limits.kv_pages = 2;
  constexpr std::int32_t said = 0x01010101;  // by `filling`
  limits.vocab_size = said + 1;
  step_executor executor(test_device(), limits, layout, {filling(1)},
                         {.stream = mine.ref(), .requests = adopted, .finish = finish_options{{said}}});
  executor.capture();
  const std::vector<step_row> row{{.request = 1}};
  const auto reason = [&] {
    const row_result result = executor.wait(*executor.replay(step_kind::decode, row))[0];
    return std::pair(static_cast<finish_reason>(result.reason), result.count);
  };
  CHECK(reason() == std::pair(finish_reason::end_of_sequence, 1));
  CHECK(reason() == std::pair(finish_reason::end_of_sequence, 0));  // it stays ended
  executor.restart(1);
  CHECK(reason() == std::pair(finish_reason::end_of_sequence, 1));
  CHECK_THROWS_WITH_AS(executor.restart(2), doctest::Contains("outside the table of 2"), invalid_argument);
  step_executor endless(test_device(), limits, layout, {filling(1)},
                        {.stream = mine.ref(), .requests = adopted});
  endless.restart(1);  // nothing ends there, so there is nothing to forget
  CHECK(endless.wait(endless.run_eager(step_kind::decode, row))[0].count == 1);
  step_executor own(test_device(), small_limits(), layout, {filling(1)});
  CHECK_THROWS_WITH_AS(own.restart(0), doctest::Contains("open a request"), invalid_argument);
}

TEST_CASE("an adopted table's pages are bounded by the KV cache, and what does not fit it is refused") {
  const stream mine(test_device());
  const device_vector<std::int32_t> pages(mine, 64, 1000000), zeros(mine, 1, 0);
  adopted_requests adopted{.source = {.table = pages.data(),
                                      .row_stride = 64,
                                      .requests = 1,
                                      .columns = 64,
                                      .page_shift = 2,
                                      .page_granular = true},
                           .seq_lens = zeros.data(),
                           .last_token = zeros.data()};
  const std::vector<std::int32_t> token{1};
  {
    step_executor executor(test_device(), small_limits(), layout, {filling(0)}, {.requests = adopted});
    executor.capture();
    const auto results = executor.wait(*executor.replay(step_kind::decode, std::vector{first(0, token)}));
    CHECK(results[0].status == static_cast<std::int32_t>(row_status::slot_out_of_range));
  }
  adopted.source.pool_pages = 100000000;
  CHECK_THROWS_WITH_AS(
      step_executor(test_device(), small_limits(), layout, {filling(0)}, {.requests = adopted}),
      doctest::Contains("the KV cache has"), invalid_argument);
  adopted.source.requests = -1;
  CHECK_THROWS_WITH_AS(
      step_executor(test_device(), small_limits(), layout, {filling(0)}, {.requests = adopted}),
      doctest::Contains("-1 requests"), invalid_argument);
  adopted.source.requests = 1;
  adopted.seq_lens = adopted.last_token = nullptr;
  CHECK_THROWS_WITH_AS(
      step_executor(test_device(), small_limits(), layout, {filling(0)}, {.requests = adopted}),
      doctest::Contains("options.requests.seq_lens is null, options.requests.last_token is null"),
      invalid_argument);
}
