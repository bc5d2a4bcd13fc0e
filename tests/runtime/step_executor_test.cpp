#include "runtime/step_executor.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <thread>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/allocation_counter.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

step_limits small_limits() {
  return {.max_rows = 4,
          .max_step_tokens = 8,
          .max_requests = 6,
          .max_context = 64,
          .page_size = 4,
          .vocab_size = 100};
}

/// A body that "samples" a constant by filling, so that the executor itself is what is tested.
step_definition filling(unsigned char byte, step_kind kind = step_kind::decode, int variant = 0) {
  return {.kind = kind,
          .variant = variant,
          .body =
              [byte](const step_context& step) {
                step.stream.fill(step.next_token, byte, sizeof(std::int32_t) * step.key.rows);
              },
          .scratch_bytes = {}};
}

step_row first(request_id request, const std::vector<std::int32_t>& tokens) {
  return {.request = request, .tokens = static_cast<std::int32_t>(tokens.size()), .token_ids = tokens};
}

}  // namespace

TEST_CASE("every bucket of every step is captured once, and reported") {
  step_executor executor(test_device(), small_limits(), layout, {filling(1), filling(2, step_kind::extend)});
  int calls = 0, all = 0;
  executor.capture([&](int, int count) {
    ++calls;
    all = count;
  });
  CHECK(executor.captures().size() == 3 + 4 + 3 + 2);
  CHECK(all == 12);
  CHECK(calls == 13);
  for (const capture_report& each : executor.captures()) {
    CHECK(each.nodes == 4);  // prologue, metadata, fill, epilogue
    CHECK(each.milliseconds >= 0);
  }
  CHECK(executor.captures().front().key.tokens == 8);
  executor.capture();
  CHECK(executor.captures().size() == 12);
}

TEST_CASE("a step's graph can be looked at") {
  step_executor executor(test_device(), small_limits(), layout, {filling(1)});
  std::ostringstream out;
  executor.dot(step_kind::decode, 3, 3, 0, out);
  CHECK(out.str().find("digraph") != std::string::npos);
  CHECK(out.str().find("step_prologue") != std::string::npos);
}

TEST_CASE("a replay advances lengths and brings its results back") {
  step_executor executor(test_device(), small_limits(), layout, {filling(1)});
  executor.capture();
  const request_id a = executor.open(), b = executor.open();
  const std::vector<std::int32_t> token{42};
  const std::vector<step_row> rows{first(b, token), first(a, token)};
  auto results = executor.wait(*executor.replay(step_kind::decode, rows));
  REQUIRE(results.size() == 2);
  CHECK(results[0].token == 0x01010101);
  CHECK(results[0].length == 1);
  CHECK(results[0].status == 0);
}

TEST_CASE("the step after a sampled token outside the vocabulary reports it and goes on") {
  step_executor executor(test_device(), small_limits(), layout, {filling(1)});
  executor.capture();
  const request_id request = executor.open();
  const std::vector<std::int32_t> token{42};
  executor.wait(*executor.replay(step_kind::decode, std::vector{first(request, token)}));
  CHECK_FALSE(executor.fault());
  const std::vector<step_row> next{{.request = request}};
  const auto results = executor.wait(*executor.replay(step_kind::decode, next));
  CHECK(results[0].status == static_cast<std::int32_t>(row_status::token_out_of_range));
  REQUIRE(executor.fault());
  CHECK(executor.fault()->value == 0x01010101);
  CHECK(executor.fault()->op == static_cast<std::int32_t>(op_id::step_prologue));
  executor.reset_fault();
  CHECK_FALSE(executor.fault());
}

TEST_CASE("a replay neither allocates nor synchronises, whatever it carries") {
  step_executor executor(test_device(), small_limits(), layout, {filling(0), filling(0, step_kind::extend)});
  executor.capture();
  std::vector<request_id> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(executor.open());
  const std::vector<std::int32_t> one{1}, two{1, 2};
  std::vector<step_row> rows;
  for (const request_id request : requests) rows.push_back(first(request, two));
  executor.wait(*executor.replay(step_kind::extend, rows));
  for (int live = 4; live >= 0; --live)
    for (const step_kind kind : {step_kind::decode, step_kind::extend}) {
      rows.clear();
      for (int r = 0; r < live; ++r)
        rows.push_back(kind == step_kind::decode ? first(requests[r], one) : first(requests[r], two));
      const activity before = activity_now();
      const std::uint64_t host_before = host_allocations();
      const auto ticket = executor.replay(kind, rows, 0, when_full::would_block);
      CHECK(host_allocations() == host_before);
      const activity did = activity_now() - before;
      CHECK(did.allocations == 0);
      CHECK(did.synchronizations == 0);
      CHECK(did.captures == 0);
      CHECK(did.launches == 1);
      REQUIRE(ticket);
      executor.wait(*ticket);
    }
}

TEST_CASE("rows that cannot be are refused by name, and nothing changes") {
  step_executor executor(test_device(), small_limits(), layout, {filling(1)});
  executor.capture();
  const request_id a = executor.open();
  const std::vector<std::int32_t> token{42}, bad{100}, two{1, 2};
  const std::int64_t pages = executor.free_pages();
  const auto refused = [&](const std::vector<step_row>& rows, const char* why, int variant = 0,
                           step_kind kind = step_kind::decode) {
    CHECK_THROWS_WITH_AS(executor.replay(kind, rows, variant), doctest::Contains(why), invalid_argument);
  };
  refused({first(a, token), first(a, token)}, "named by two rows");
  refused({first(5, token)}, "request 5 is not open");
  refused({first(6, token)}, "request 6 is outside the table of 6");
  refused({first(-1, token)}, "request -1 is outside the table");
  refused({first(a, bad)}, "token id 100");
  refused({first(a, two)}, "a row of 2 tokens in a decode step");
  refused({{.request = a}}, "has no token yet");
  refused({{.request = a, .tokens = 1, .token_ids = two}}, "has 1 tokens but 2 token ids");
  refused({first(a, token)}, "no capture for decode, 1 rows, 1 tokens, variant 3", 3);
  refused({first(a, token)}, "no capture for extend", 0, step_kind::extend);
  std::vector<step_row> many(5, first(a, token));
  refused(many, "5 rows are over max_rows 4");
  CHECK(executor.free_pages() == pages);
  CHECK(executor.length_bound(a) == 0);
  CHECK(executor.statistics().total().replays == 0);
}

TEST_CASE("a replay before capture says what to do") {
  step_executor executor(test_device(), small_limits(), layout, {filling(1)});
  const std::vector<std::int32_t> token{1};
  const request_id request = executor.open();
  CHECK_THROWS_WITH_AS(executor.replay(step_kind::decode, std::vector{first(request, token)}),
                       doctest::Contains("call capture() first"), invalid_argument);
}

TEST_CASE("page exhaustion is told with the numbers, and closing a request helps") {
  step_limits limits = small_limits();
  limits.kv_pages = 3;  // two, and the sink
  step_executor executor(test_device(), limits, layout, {filling(1), filling(1, step_kind::extend)});
  executor.capture();
  const request_id a = executor.open(), b = executor.open();
  const std::vector<std::int32_t> five(5, 1), one{1};
  executor.wait(*executor.replay(step_kind::extend, std::vector{first(a, five)}));
  CHECK(executor.free_pages() == 0);
  try {
    executor.replay(step_kind::decode, std::vector{first(b, one)});
    FAIL("a page came from nowhere");
  } catch (const out_of_pages& refused) {
    CHECK(refused.pages_needed() == 1);
    CHECK(refused.pages_there() == 0);
  }
  executor.close(a);
  CHECK(executor.wait(*executor.replay(step_kind::decode, std::vector{first(b, one)}))[0].length == 1);
}

TEST_CASE("page-edge: a length over the context is refused before launch") {
  step_executor executor(test_device(), small_limits(), layout, {filling(1, step_kind::extend)});
  executor.capture();
  const request_id a = executor.open();
  const std::vector<std::int32_t> eight(8, 1), one{1};
  for (int i = 0; i < 8; ++i)
    CHECK(executor.wait(*executor.replay(step_kind::extend, std::vector{first(a, eight)}))[0].length ==
          8 * (i + 1));
  CHECK_THROWS_WITH_AS(executor.replay(step_kind::extend, std::vector{first(a, one)}),
                       doctest::Contains("64 tokens and 1 more is over max_context 64"), invalid_argument);
}

TEST_CASE("results are valid for in_flight steps, then their ticket is refused") {
  step_executor executor(test_device(), small_limits(), layout, {filling(0)});
  executor.capture();
  const request_id a = executor.open();
  const std::vector<std::int32_t> token{1};
  const step_ticket old = *executor.replay(step_kind::decode, std::vector{first(a, token)});
  for (int i = 0; i < 4; ++i) executor.replay(step_kind::decode, std::vector{first(a, token)});
  CHECK_THROWS_WITH_AS(executor.wait(old), doctest::Contains("overwritten by step 5"), invalid_argument);
}

TEST_CASE("memory-budget: limits over the budget are refused with the bytes needed and there") {
  try {
    step_executor executor(test_device(), small_limits(), layout, {filling(1)}, {.memory_budget = 1000});
    FAIL("1000 bytes were enough");
  } catch (const out_of_memory& refused) {
    CHECK(refused.bytes_there() == 1000);
    CHECK(std::string(refused.what()).find("kv_cache") != std::string::npos);
  }
}

TEST_CASE("limits that cannot be are refused by name") {
  const auto refused = [](auto change, const char* why) {
    step_limits limits = small_limits();
    change(limits);
    CHECK_THROWS_WITH_AS(step_executor(test_device(), limits, layout, {filling(1)}), doctest::Contains(why),
                         invalid_argument);
  };
  refused([](step_limits& l) { l.max_rows = 0; }, "max_rows");
  refused([](step_limits& l) { l.page_size = 12; },
          "page_size must be a power of two from 1 to 1024, got 12");
  refused([](step_limits& l) { l.max_context = 0; }, "max_context");
  refused([](step_limits& l) { l.vocab_size = 0; }, "vocab_size");
  refused([](step_limits& l) { l.in_flight = 0; }, "in_flight");
  refused([](step_limits& l) { l.kv_pages = -1; }, "kv_pages");
  refused([](step_limits& l) { l.kv_pages = INT32_MAX; }, "more than 2^31 slots");
  refused([](step_limits& l) { l.max_context = INT32_MAX; }, "overflow the int32 prefix sums");
  refused([](step_limits& l) { l.page_size = INT32_MIN; }, "page_size");
  refused([](step_limits& l) { l.max_draft_tokens = 64; }, "max_draft_tokens");
  CHECK_THROWS_WITH_AS(step_executor(test_device(), small_limits(), layout, {filling(1), filling(2)}),
                       doctest::Contains("two steps of kind decode, variant 0"), invalid_argument);
  CHECK_THROWS_WITH_AS(step_executor(test_device(), small_limits(), layout, {}),
                       doctest::Contains("no steps"), invalid_argument);
}

TEST_CASE(
    "lost-launch: a body that throws, allocates or synchronises fails its capture by name, and the executor "
    "works on") {
  bool bad = true;
  int how = 0;
  SUBCASE("throws") {
    how = 0;
  }
  SUBCASE("allocates") {
    how = 1;
  }
  SUBCASE("synchronises") {
    how = 2;
  }
  SUBCASE("launches on a foreign stream") {
    how = 3;
  }
  const stream foreign(test_device());
  const device_vector<int> data(foreign, 1, 0);
  step_definition step = filling(1);
  step.body = [&, good = step.body](const step_context& context) {
    good(context);
    if (!bad || !context.stream.is_capturing()) return;
    if (how == 0) throw std::runtime_error("the body failed");
    if (how == 1) buffer(device_memory(context.stream.where()), 16);
    if (how == 2) context.stream.synchronize();
    if (how == 3) foreign.ref().fill(data.data(), 1, 4);
  };
  step_executor executor(test_device(), small_limits(), layout, {step});
  CHECK_THROWS_WITH_AS(executor.capture(),
                       doctest::Contains("capture of decode, 4 rows, 4 tokens, variant 0"), capture_error);
  CHECK(executor.captures().empty());
  bad = false;
  executor.capture();
  CHECK(executor.captures().size() == 3);
  const request_id a = executor.open();
  const std::vector<std::int32_t> token{1};
  CHECK(executor.wait(*executor.replay(step_kind::decode, std::vector{first(a, token)}))[0].token ==
        0x01010101);
}

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
  step_executor own(test_device(), small_limits(), layout, {filling(1)});
  CHECK_THROWS_WITH_AS(own.restart(0), doctest::Contains("open a request"), invalid_argument);
}

TEST_CASE("one executor called from two threads is refused, not corrupted") {
  step_executor* inside = nullptr;
  std::string refusal;
  step_definition step = filling(1);
  step.body = [&, body = step.body](const step_context& context) {
    body(context);
    if (!inside || context.stream.is_capturing()) return;
    std::thread([&] {
      try {
        inside->open();
      } catch (const invalid_argument& refused) {
        refusal = refused.what();
      }
    }).join();
  };
  step_executor executor(test_device(), small_limits(), layout, {step});
  inside = &executor;
  executor.capture();
  CHECK(refusal.find("while a call is inside") != std::string::npos);
}

TEST_CASE("while a step is inside, every guarded call of a second thread is refused and changes nothing") {
  const auto run = [](bool disturbed) {
    step_executor* inside = nullptr;
    request_id request = 0;
    step_ticket ticket;
    int refused = 0, calls = 0;
    step_definition step = filling(1);
    step.body = [&, body = step.body](const step_context& context) {
      body(context);
      if (!inside || context.stream.is_capturing()) return;
      std::thread([&] {
        const auto refuse = [&](auto&& call) {
          ++calls;
          try {
            call();
          } catch (const invalid_argument& why) {
            refused += std::string(why.what()).find("while a call is inside") != std::string::npos ? 1 : 0;
          }
        };
        const std::vector<step_row> rows{{.request = request}};
        refuse([&] { inside->replay(step_kind::decode, rows); });
        refuse([&] { inside->run_eager(step_kind::decode, rows); });
        refuse([&] { inside->wait(ticket); });
        refuse([&] { static_cast<void>(inside->ready(ticket)); });
        refuse([&] { static_cast<void>(inside->statistics()); });
        refuse([&] { static_cast<void>(inside->free_pages()); });
        refuse([&] { static_cast<void>(inside->length_bound(request)); });
        refuse([&] { inside->close(request); });
        refuse([&] { inside->recapture(inside->limits()); });
      }).join();
    };
    step_executor executor(test_device(), small_limits(), layout, {step});
    executor.capture();
    request = executor.open();
    const std::vector<std::int32_t> token{1};
    std::vector<std::int64_t> seen;
    ticket = *executor.replay(step_kind::decode, std::vector{first(request, token)});
    for (int i = 0; i < 6; ++i) {
      for (const row_result& row : executor.wait(ticket)) seen.insert(seen.end(), {row.token, row.length});
      seen.insert(seen.end(), {executor.free_pages(), executor.length_bound(request)});
      inside = disturbed ? &executor : nullptr;
      const std::vector<step_row> rows{{.request = request}};
      ticket = i % 2 == 0 ? executor.run_eager(step_kind::decode, rows)
                          : *executor.replay(step_kind::decode, rows);
    }
    CHECK(refused == calls);
    CHECK(calls == (disturbed ? 3 * 9 : 0));
    seen.push_back(static_cast<std::int64_t>(executor.statistics().eager_steps));
    return seen;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("statistics tell live from captured pages, per bucket") {
  step_executor executor(test_device(), small_limits(), layout, {filling(0)});
  executor.capture();
  const request_id a = executor.open(), b = executor.open(), c = executor.open();
  const std::vector<std::int32_t> token{1};
  executor.replay(step_kind::decode, std::vector{first(a, token), first(b, token), first(c, token)});
  executor.replay(step_kind::decode, std::vector{first(a, token)});
  const auto total = executor.statistics().total();
  CHECK(total.replays == 2);
  CHECK(total.live_rows == 4);
  CHECK(total.live_pages == 4);
  CHECK(total.captured_pages == (4 + 1) * 16);
  for (const bucket_statistics& each : executor.statistics().buckets)
    CHECK(each.replays == (each.key.rows == 2 ? 0u : 1u));
}

TEST_CASE("a line's new owner starts afresh even if its first step fails") {
  // the body of a first step throws, eagerly, after the prologue; the line was another request's before
  bool fail = false;
  step_definition step = filling(0, step_kind::extend);
  step.body = [&, body = step.body](const step_context& context) {
    if (fail) throw std::runtime_error("the body failed");
    body(context);
  };
  step_limits limits = small_limits();
  limits.max_requests = 1;
  step_executor executor(test_device(), limits, layout, {step});
  executor.capture();
  const std::vector<std::int32_t> eight(8, 1), two(2, 1), one(1, 1);
  const request_id a = executor.open();
  CHECK(executor.wait(*executor.replay(step_kind::extend, std::vector{first(a, eight)}))[0].length == 8);
  executor.close(a);
  const request_id b = executor.open();
  const std::int64_t pages = executor.free_pages();
  fail = true;
  CHECK_THROWS_WITH_AS(executor.run_eager(step_kind::extend, std::vector{first(b, two)}), "the body failed",
                       std::runtime_error);
  fail = false;
  CHECK(executor.length_bound(b) == 0);
  CHECK_THROWS_WITH_AS(executor.replay(step_kind::extend, std::vector{step_row{.request = b}}),
                       doctest::Contains("has no token yet"), invalid_argument);
  CHECK(executor.wait(*executor.replay(step_kind::extend, std::vector{first(b, one)}))[0].length == 1);
  CHECK(executor.free_pages() >= pages - 1);
}

TEST_CASE("a step that samples nothing leaves no token behind to be fed again") {
  step_executor executor(test_device(), small_limits(), layout,
                         {filling(0xff), filling(0, step_kind::decode, 1)});
  executor.capture();
  const request_id request = executor.open();
  const std::vector<std::int32_t> token{42};
  executor.wait(*executor.replay(step_kind::decode, std::vector{first(request, token)}));
  CHECK(executor.wait(*executor.replay(step_kind::decode, std::vector{step_row{.request = request}}))[0]
            .token == -1);
  const auto results =
      executor.wait(*executor.replay(step_kind::decode, std::vector{step_row{.request = request}}));
  CHECK(results[0].status == static_cast<std::int32_t>(row_status::token_out_of_range));
}

TEST_CASE("tickets of another executor, of none, and of steps not launched are refused") {
  step_executor one(test_device(), small_limits(), layout, {filling(0)});
  step_executor other(test_device(), small_limits(), layout, {filling(0)});
  one.capture();
  const request_id request = one.open();
  const std::vector<std::int32_t> token{1};
  step_ticket ticket = *one.replay(step_kind::decode, std::vector{first(request, token)});
  CHECK_THROWS_WITH_AS(other.wait(ticket), doctest::Contains("another executor"), invalid_argument);
  CHECK_THROWS_WITH_AS(one.wait({}), doctest::Contains("or of none"), invalid_argument);
  one.wait(ticket);
  ticket.sequence += 1;
  CHECK_THROWS_AS(one.ready(ticket), invalid_argument);
}

TEST_CASE("a step cannot be launched inside a capture") {
  step_executor executor(test_device(), small_limits(), layout, {filling(0)});
  executor.capture();
  const request_id request = executor.open();
  const std::vector<std::int32_t> token{1};
  CHECK_THROWS_AS(
      capture(executor.stream(),
              [&](stream_ref) { executor.replay(step_kind::decode, std::vector{first(request, token)}); }),
      capture_error);
  CHECK(executor.length_bound(request) == 0);
  CHECK(executor.wait(*executor.replay(step_kind::decode, std::vector{first(request, token)}))[0].length ==
        1);
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
