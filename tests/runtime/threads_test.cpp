// One executor, one thread; several executors beside each other.
#include <doctest/doctest.h>

#include <thread>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/filling_step.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;
using namespace stepgraph::filling_step;

TEST_CASE("two executors on two threads and streams know nothing of each other") {
  const tiny t;
  // by an executor alone, whose bits are those of any other: near ties of an oracle would be no fault here
  step_executor alone = t.executor(2);
  alone.capture();
  reference::random_integers random(test_seed());
  constexpr int threads = 2;
  const int texts = test_small() ? 2 : 8, length = test_small() ? 8 : 40;
  std::vector<std::vector<std::int32_t>> prompts, want;
  for (int i = 0; i < threads * texts; ++i) {
    prompts.push_back(
        random_prompt(random, static_cast<int>(random.between(1, 30)), t.weights.config.vocab_size));
    want.push_back(text_of(alone, prompts.back(), length));
  }
  // each thread makes its own model, stream, executor and captures, and runs its texts while the other does
  std::vector<std::vector<std::int32_t>> got(prompts.size());
  std::vector<std::string> failures(threads);
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number)
    running.emplace_back([&, number] {
      try {
        const tiny mine;
        const stream own(test_device());
        step_executor executor = mine.executor(2, {.stream = own.ref()});
        executor.capture();
        for (int i = number * texts; i < (number + 1) * texts; ++i)
          got[i] = text_of(executor, prompts[i], length);
      } catch (const std::exception& cause) {
        failures[number] = cause.what();
      }
    });
  for (std::thread& each : running) each.join();
  for (const std::string& each : failures) CHECK_MESSAGE(each.empty(), each);
  CHECK(got == want);
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
