#include "runtime/step_executor.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <thread>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/allocation_counter.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/filling_step.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;
using namespace stepgraph::filling_step;

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
  CHECK(one.ready(ticket));
  CHECK_THROWS_WITH_AS(other.ready(ticket), doctest::Contains("another executor"), invalid_argument);
  CHECK_THROWS_WITH_AS(one.ready({}), doctest::Contains("or of none"), invalid_argument);
  ticket.sequence += 1;
  CHECK_THROWS_AS(one.ready(ticket), invalid_argument);
}

TEST_CASE("a step of a shape that there are no buffers for is neither enqueued nor drawn") {
  step_limits limits = small_limits();
  step_executor executor(test_device(), limits, layout, {filling(0), filling(0, step_kind::extend)},
                         {.row_buckets = bucket_policy::exactly({2, limits.max_rows}),
                          .token_buckets = bucket_policy::exactly({limits.max_step_tokens})});
  const auto refused = [&](const step_key& key, const char* why) {
    const activity before = activity_now();
    CHECK_THROWS_WITH_AS(executor.enqueue_step(key), doctest::Contains(why), invalid_argument);
    CHECK((activity_now() - before).launches == 0);
  };
  const int rows = limits.max_rows, tokens = limits.max_step_tokens;
  refused({.kind = step_kind::decode, .rows = rows + 1, .tokens = rows + 1}, "are no bucket, the largest is");
  refused({.kind = step_kind::decode, .rows = 1, .tokens = 1}, "1 rows are no bucket");
  refused({.kind = step_kind::decode, .rows = 2, .tokens = 3},
          "3 tokens are no bucket of decode with 2 rows");
  refused({.kind = step_kind::extend, .rows = 2, .tokens = tokens + 1}, "tokens are no bucket of extend");
  refused({.kind = step_kind::decode, .rows = 2, .tokens = 2, .steps = 2}, "2 steps of decode are none");
  refused({.kind = step_kind::target_verify, .rows = 2, .tokens = tokens}, "no step was defined");
  std::ostringstream out;
  CHECK_THROWS_WITH_AS(executor.dot(step_kind::extend, 2, tokens + 1, 0, out),
                       doctest::Contains("tokens are over the largest bucket"), invalid_argument);
  CHECK_THROWS_AS(executor.dot(step_kind::decode, rows + 1, rows + 1, 0, out), invalid_argument);
  CHECK(out.str().empty());
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
