// Whole steps of a real model shape, from seeded weights: replay, eager mode and a straightforward pass must
// agree.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

TEST_CASE("replay = eager = a straightforward forward pass, token for token") {
  const tiny t;
  reference::llama_reference plain(t.weights);
  reference::random_integers random(test_seed());
  step_executor replayed = t.executor(2), eager = t.executor(2);
  replayed.capture();
  const int length = test_small() ? 12 : 128;
  for (int i = 0; i < test_rounds(5); ++i) {
    const auto [prompt, want] = ask_reference(plain, random, static_cast<int>(random.between(1, 40)), length);
    CHECK(text_of(replayed, prompt, length) == want);
    CHECK(text_of(eager, prompt, length, llama::step_mode::eager) == want);
  }
  CHECK(eager.statistics().eager_steps > 0);
  CHECK(eager.captures().empty());
}

TEST_CASE("rows join and leave, of any length, and each text is what it is alone") {
  const tiny t;
  reference::random_integers random(test_seed() + 1);
  for (const bool poison : {false, true}) {
    step_executor alone = t.executor(1), together = t.executor(5, {.poison = poison});
    alone.capture();
    together.capture();
    const std::size_t captures = together.captures().size();
    const activity before = activity_now();
    std::vector<llama::conversation> talks(test_small() ? 6 : 17);
    llama::scheduler loop(together, {});
    for (auto& talk : talks) {
      talk.prompt =
          random_prompt(random, static_cast<int>(random.between(1, 60)), t.weights.config.vocab_size);
      talk.max_tokens = static_cast<int>(random.between(1, test_small() ? 6 : 50));
      loop.add(talk);
    }
    while (loop.step()) {
    }
    const activity did = activity_now() - before;
    CHECK(did.captures == 0);
    CHECK(did.instantiations == 0);
    CHECK(did.allocations == 0);
    CHECK(together.captures().size() == captures);
    for (const auto& talk : talks) {
      CHECK(talk.stopped == llama::stop_reason::token_budget);
      CHECK(talk.generated == text_of(alone, talk.prompt, talk.max_tokens));
    }
    CHECK_FALSE(together.fault());
  }
}

TEST_CASE("a request runs to the last token of its context" * doctest::skip(test_small())) {
  const tiny t;
  step_executor executor = t.executor(1);
  executor.capture();
  llama::conversation talk{.prompt = {1, 2, 3}, .max_tokens = 10000};
  llama::scheduler loop(executor, {});
  loop.add(talk);
  while (loop.step()) {
  }
  CHECK(talk.stopped == llama::stop_reason::context_limit);
  // the last token sampled is not in the cache
  CHECK(talk.generated.size() == 256 - 3 + 1);
  llama::conversation again{.prompt = std::vector<std::int32_t>(255, 5), .max_tokens = 10000};
  loop.add(again);
  while (loop.step()) {
  }
  CHECK(again.generated.size() == 2);
  llama::conversation too_long{.prompt = std::vector<std::int32_t>(256, 5)};
  CHECK_THROWS_WITH_AS(loop.add(too_long), doctest::Contains("256 tokens"), invalid_argument);
}

TEST_CASE("logits of a replay equal the straightforward pass within rounding") {
  const tiny t;
  reference::llama_reference plain(t.weights);
  const float* logits = nullptr;
  std::vector<step_definition> steps = t.model->steps();
  for (step_definition& step : steps)
    step.body = [&, body = step.body](const step_context& context) {
      body(context);
      logits = llama::llama_model::logits(context);
    };
  step_executor executor(test_device(), t.limits(1), t.model->layout(), steps);
  executor.capture();
  const request_id request = executor.open();
  reference::random_integers random(test_seed() + 2);
  for (int i = 0; i < test_rounds(50); ++i) {
    const std::vector<std::int32_t> token = random_prompt(random, 1, t.weights.config.vocab_size);
    const std::vector<step_row> rows{{.request = request, .tokens = 1, .token_ids = token}};
    executor.wait(*executor.replay(step_kind::decode, rows));
    std::vector<float> got(t.weights.config.vocab_size);
    executor.stream().copy(got.data(), logits, got.size() * sizeof(float));
    executor.stream().synchronize();
    const auto want = plain.forward(token[0]);
    double difference = 0, norm = 0;
    for (std::size_t v = 0; v < got.size(); ++v) {
      difference += (got[v] - want[v]) * (got[v] - want[v]);
      norm += want[v] * want[v];
    }
    CHECK(std::sqrt(difference / norm) < 1e-4);
  }
}
