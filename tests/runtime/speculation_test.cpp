// Verify steps on the tiny model: whatever is drafted, the text is that of plain greedy decoding.
#include <doctest/doctest.h>

#include <map>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "runtime/prompt_lookup.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

/// A drafter that knows the texts and errs now and then, so that every accept length occurs; sometimes it
/// proposes nothing, so that rows sit rounds out with one token.
llama::drafter noisy(const std::map<text, text>& texts, int vocab, std::uint64_t seed) {
  return [&texts, vocab, random = std::make_shared<reference::random_integers>(seed)](
             std::span<const std::int32_t> history, std::span<std::int32_t> drafts) {
    for (const auto& [prompt, answer] : texts) {
      if (history.size() < prompt.size() || !std::ranges::equal(history.first(prompt.size()), prompt))
        continue;
      const std::size_t generated = history.size() - prompt.size();
      // often as many as there may be, so that the longest accepts occur, too
      const auto wanted = static_cast<std::size_t>(random->one_in(2) ? std::ssize(drafts)
                                                                     : random->below(std::ssize(drafts) + 1));
      const std::size_t count = std::min(wanted, answer.size() - std::min(generated, answer.size()));
      for (std::size_t i = 0; i < count; ++i)
        drafts[i] =
            random->one_in(12) ? static_cast<std::int32_t>(random->below(vocab)) : answer[generated + i];
      return static_cast<int>(count);
    }
    return 0;
  };
}

}  // namespace

TEST_CASE(
    "lossless: greedy text with drafts equals plain decoding, K from 1 to 8, rows joining and leaving") {
  const tiny t;
  const int vocab = t.weights.config.vocab_size;
  reference::random_integers random(test_seed());
  step_executor plain = t.executor(1);
  plain.capture();
  std::map<text, text> texts;
  while (std::ssize(texts) < (test_small() ? 4 : 9)) {
    const text prompt = random_prompt(random, static_cast<int>(random.between(1, 30)), vocab);
    texts[prompt] = text_of(plain, prompt, test_small() ? 10 : 60);
  }
  for (const int most : {1, 2, 4, 8}) {
    if (test_small() && most != 4) continue;
    CAPTURE(most);
    step_executor executor = t.executor(4, {.poison = most == 4}, most);
    executor.capture();
    const activity before = activity_now();
    std::vector<llama::conversation> talks;
    for (const auto& [prompt, answer] : texts)
      talks.push_back({.prompt = prompt, .max_tokens = static_cast<int>(answer.size())});
    llama::scheduler loop(executor, {.draft = noisy(texts, vocab, test_seed() + most)});
    for (auto& talk : talks) loop.add(talk);
    while (loop.step()) {
    }
    for (const auto& talk : talks) CHECK(talk.generated == texts.at(talk.prompt));
    CHECK_FALSE(executor.fault());
    CHECK(activity_now().captures == before.captures);
    CHECK(activity_now().allocations == before.allocations);
    if (test_small()) continue;
    for (const std::uint64_t rounds : loop.drafts().rounds_by_accepted)
      CHECK_MESSAGE(rounds > 0, "an accept length never occurred");
  }
}

TEST_CASE("prompt look-up drafts leave the text as it is, replayed and eager") {
  const tiny t;
  reference::random_integers random(test_seed() + 1);
  const llama::drafter lookup = [](std::span<const std::int32_t> history, std::span<std::int32_t> drafts) {
    return prompt_lookup(history, drafts);
  };
  step_executor plain = t.executor(1), replayed = t.executor(1, {}, 3), eager = t.executor(1, {}, 3);
  plain.capture();
  replayed.capture();
  for (int i = 0; i < test_rounds(4); ++i) {
    text prompt = random_prompt(random, 12, t.weights.config.vocab_size);
    prompt.insert(prompt.end(), prompt.begin(), prompt.end());
    const int length = test_small() ? 15 : 40;
    const text want = text_of(plain, prompt, length);
    CHECK(text_of(replayed, prompt, length, llama::step_mode::replay, lookup) == want);
    CHECK(text_of(eager, prompt, length, llama::step_mode::eager, lookup) == want);
  }
}

TEST_CASE(
    "ragged-zero, accept-zero: rows of a verify step with no tokens, with no drafts, with none accepted") {
  const tiny t;
  reference::random_integers random(test_seed() + 2);
  const int vocab = t.weights.config.vocab_size;
  step_executor executor = t.executor(4, {}, 3), plain = t.executor(1);
  executor.capture();
  plain.capture();
  std::vector<request_id> requests;
  std::vector<text> prompts, answers;
  for (int r = 0; r < 4; ++r) {
    requests.push_back(executor.open());
    prompts.push_back(random_prompt(random, 3 + r, vocab));
    answers.push_back(text_of(plain, prompts[r], 6));
    const std::vector<step_row> row{{.request = requests[r],
                                     .tokens = static_cast<std::int32_t>(prompts[r].size()),
                                     .token_ids = prompts[r]}};
    CHECK(executor.wait(*executor.replay(step_kind::extend, row))[0].token == answers[r][0]);
  }
  const auto wrong = [&](std::int32_t right) { return (right + 1) % vocab; };
  const text good{answers[1][1], answers[1][2], answers[1][3]}, bad{wrong(answers[2][1]), answers[2][2]},
      none;
  const std::vector<step_row> rows{{.request = requests[0], .tokens = 0},
                                   {.request = requests[1], .tokens = 4, .token_ids = good},
                                   {.request = requests[2], .tokens = 3, .token_ids = bad},
                                   {.request = requests[3], .tokens = 1}};
  const step_ticket ticket = *executor.replay(step_kind::target_verify, rows);
  const auto results = executor.wait(ticket);
  CHECK(results[0].count == 0);
  CHECK(results[0].length == static_cast<int>(prompts[0].size()));
  CHECK(std::ranges::equal(executor.emitted(ticket, 1), std::span(answers[1]).subspan(1, 4)));
  CHECK(std::ranges::equal(executor.emitted(ticket, 2), std::span(answers[2]).subspan(1, 1)));
  CHECK(std::ranges::equal(executor.emitted(ticket, 3), std::span(answers[3]).subspan(1, 1)));
  CHECK(results[1].length == static_cast<int>(prompts[1].size()) + 4);
  CHECK(results[2].length == static_cast<int>(prompts[2].size()) + 1);
  CHECK(executor.length_bound(requests[2]) == results[2].length);
  // the row that sat out goes on as if the step had not been
  const std::vector<step_row> all{{.request = requests[0], .tokens = 0},
                                  {.request = requests[1], .tokens = 0},
                                  {.request = requests[2], .tokens = 0}};
  CHECK(executor.wait(*executor.replay(step_kind::target_verify, all))[1].count == 0);
  const std::vector<step_row> last{{.request = requests[0]}, {.request = requests[2]}};
  const auto next = executor.wait(*executor.replay(step_kind::decode, last));
  CHECK(next[0].token == answers[0][1]);
  CHECK(next[1].token == answers[2][2]);
}

TEST_CASE("a verify step refuses by name what cannot be") {
  const tiny t;
  step_executor executor = t.executor(2, {}, 2);
  executor.capture();
  const request_id request = executor.open();
  const text prompt{1, 2}, drafts{3, 4, 5};
  const auto refused = [&](step_row row, const char* why) {
    CHECK_THROWS_WITH_AS(executor.replay(step_kind::target_verify, std::vector{row}), doctest::Contains(why),
                         invalid_argument);
  };
  refused({.request = request, .tokens = 3, .token_ids = prompt}, "has no token yet");
  executor.wait(*executor.replay(
      step_kind::extend, std::vector{step_row{.request = request, .tokens = 2, .token_ids = prompt}}));
  refused({.request = request, .tokens = 4, .token_ids = drafts}, "has 3 drafts, max_draft_tokens is 2");
  refused({.request = request, .tokens = 2, .token_ids = prompt}, "has 2 tokens but 2 drafts");
}
