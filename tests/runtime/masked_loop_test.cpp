// Masks of allowed tokens under the loop, one round ahead of the device: a model of the host backend whose forbidden
// tokens have the largest logits says what it says without them.
#include <doctest/doctest.h>

#include "runtime/speculative_loop.hpp"
#include "tests/fuzz/recent_model.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

TEST_CASE(
    "masks under the loop: texts with drafts of the model, of prompt look-up and of trees equal masked plain "
    "decoding, and no token is a forbidden one") {
  if (!test_device().is_host()) return;  // the model is one of the host
  recent_model model{.masked = true};
  const step_limits limits{.max_rows = 3,
                           .max_step_tokens = 24,
                           .max_draft_tokens = 3,
                           .max_requests = 3,
                           .max_context = 64,
                           .page_size = 4,
                           .vocab_size = recent_model::vocab,
                           .hidden_size = 1};
  step_executor executor(device::host(), limits, recent_model::layout, model.steps(),
                         {.poison = true, .draft = recent_model::draft(), .finish = finish_options{}});
  executor.capture();
  reference::random_integers random(test_seed());
  const draft_source by_host{.from = draft_source::where::host,
                             .propose =
                                 [](std::span<const std::int32_t> history, draft_proposal proposal) {
                                   // siblings first: a forbidden token, then the right one, then its successor
                                   std::vector<std::int32_t> text(history.begin(), history.end());
                                   const std::int32_t right = recent_model::next(text);
                                   text.push_back(right);
                                   const std::int32_t tokens[] = {(right + 5) % recent_model::vocab, right,
                                                                  recent_model::next(text)};
                                   const std::int32_t parents[] = {0, 0, 2};
                                   const auto count =
                                       std::min<std::ptrdiff_t>(3, std::ssize(proposal.tokens));
                                   std::copy_n(tokens, count, proposal.tokens.begin());
                                   std::copy_n(parents, count, proposal.parents.begin());
                                   return static_cast<int>(count);
                                 },
                             .trees = true};
  std::uint64_t accepted = 0;
  for (const speculative_options& how :
       {speculative_options{}, speculative_options{.drafts = draft_source::model(), .draft_length = 3},
        speculative_options{.drafts = draft_source::prompt_lookup(2), .draft_length = 3},
        speculative_options{.drafts = by_host, .draft_length = 3}}) {
    speculative_loop loop(executor, how);
    std::vector<heard> got(6);
    std::vector<std::vector<std::int32_t>> prompts;
    for (std::size_t i = 0; i < got.size(); ++i) {
      prompts.push_back(random_prompt(random, static_cast<int>(random.between(1, 9)), recent_model::vocab));
      submit(loop, prompts[i], 30, got[i], {.temperature = i % 2 ? 0.9f : 0.0f, .seed = i + 1});
    }
    loop.run();
    for (std::size_t i = 0; i < got.size(); ++i) {
      std::vector<std::int32_t> text = prompts[i];
      while (std::ssize(text) < std::ssize(prompts[i]) + 30) text.push_back(recent_model::next(text));
      CHECK(std::ranges::equal(got[i].tokens, std::span(text).subspan(prompts[i].size())));
    }
    accepted += loop.statistics().accepted;
  }
  CHECK(accepted > 0);
  CHECK_FALSE(executor.fault());
}
