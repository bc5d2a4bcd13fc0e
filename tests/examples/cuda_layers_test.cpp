// The example's bfloat16 layers on a GPU, whole steps of small models: chunks of every kind of size, which
// take different kernels, must give the logits of the straightforward pass over the same weights, poison
// around them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "examples/llama/llama_model.hpp"
#include "runtime/step_executor.hpp"
#include "tests/reference/llama_forward.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/rounded_weights.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double(got[i]) - want[i], 2);
    size += double(want[i]) * want[i];
  }
  return std::sqrt(difference / size);
}

void check_model(const llama::llama_config& config, const std::vector<int>& chunks) {
  const llama::llama_weights weights = rounded(llama::make_tiny_weights(11, config));
  const auto model = llama::make_llama(test_device(), weights);
  reference::llama_reference plain(weights);
  const float* logits = nullptr;
  std::vector<step_definition> steps = model->steps(true);
  for (step_definition& step : steps)
    step.body = [&logits, body = step.body](const step_context& context) {
      step_context with_logits = context;
      with_logits.ranked_argmax = nullptr;
      body(with_logits);
      logits = llama::llama_model::logits(context);
    };
  step_executor executor(test_device(),
                         {.max_rows = 2,
                          .max_step_tokens = 128,
                          .max_draft_tokens = 7,
                          .max_requests = 2,
                          .max_context = 384,
                          .page_size = 8,
                          .vocab_size = config.vocab_size},
                         model->layout(), std::move(steps), {.poison = true});
  executor.capture();
  reference::random_integers random(test_seed());
  const request_id request = executor.open();
  int length = 0;
  std::vector<std::int32_t> ids;
  for (const int chunk : chunks) {
    std::vector<float> want;
    ids.clear();
    for (int i = 0; i < chunk; ++i) {
      ids.push_back(static_cast<std::int32_t>(random.below(config.vocab_size)));
      want = plain.forward(ids.back());
    }
    length += chunk;
    const step_row row{.request = request, .tokens = chunk, .token_ids = ids};
    // eagerly, so that `logits` is this bucket's
    const step_kind kind = chunk == 1 ? step_kind::decode : step_kind::extend;
    REQUIRE(executor.wait(executor.run_eager(kind, {&row, 1}))[0].status == 0);
    std::vector<float> got(config.vocab_size);
    executor.stream().copy(got.data(), logits, got.size() * sizeof(float));
    executor.stream().synchronize();
    CAPTURE(chunk);
    CAPTURE(length);
    CHECK(relative_error(got, want) < 5e-2);
  }
  CHECK_FALSE(executor.fault());
}

}  // namespace

TEST_CASE("bf16 layers: chunks of any size give the straightforward pass's logits") {
  if (test_device().is_host()) {
    MESSAGE("they run on a GPU alone: skipped");
    return;
  }
  const std::vector<int> chunks = test_small()
                                      ? std::vector<int>{3, 1, 10, 70}
                                      : std::vector<int>{3, 1, 1, 8, 9, 20, 1, 33, 64, 5, 65, 1, 100, 2};
  check_model(llama::tiny_config(), chunks);
  llama::llama_config wide = llama::tiny_config();
  wide.heads = 6;
  wide.head_size = 128;
  wide.hidden_size = 192;
  wide.ffn_size = 416;
  check_model(wide, chunks);
  // sizes that the fused products do not take
  llama::llama_config odd = llama::tiny_config();
  odd.hidden_size = 120;
  odd.ffn_size = 200;
  check_model(odd, chunks);
}
