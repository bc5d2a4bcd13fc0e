// One executor, one thread; several executors beside each other.
#include <doctest/doctest.h>

#include <thread>

#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

TEST_CASE("two executors on two threads and streams know nothing of each other") {
  const tiny t;
  reference::llama_reference plain(t.weights);
  reference::random_integers random(test_seed());
  constexpr int threads = 2;
  const int texts = test_small() ? 2 : 8, length = test_small() ? 8 : 40;
  std::vector<std::vector<std::int32_t>> prompts, want;
  for (int i = 0; i < threads * texts; ++i) {
    prompts.push_back(
        random_prompt(random, static_cast<int>(random.between(1, 30)), t.weights.config.vocab_size));
    want.push_back(reference_text(plain, prompts.back(), length));
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
