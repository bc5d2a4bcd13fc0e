// Other limits in mid-run, smaller ones too, while steps are in flight, drafts under way, a loop running:
// docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "graphs/error.hpp"
#include "tests/faults/seen_memory.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

/// What must outlive a recapture, copied in stream order: nothing waits for the steps in flight.
class lasting_copy {
 public:
  lasting_copy(const step_executor& executor, const seen_memory& memory) {
    const step_limits& limits = executor.limits();
    for (const carving_info& each : executor.carvings()) {
      if (memory.of_step(each) || each.bytes == 0) continue;
      part made{
          .name = each.name, .from = memory.at(each), .stride = each.bytes, .begin = 0, .end = each.bytes};
      // drafts made for the next round are dropped, and the poison's own lists are made anew
      if (each.name == "request_first_draft" || each.name == "request_first_ranked" ||
          each.name == "live_pages" || each.name == "page_live_tokens")
        continue;
      // the last line is the dead rows'; so is the first page of each plane, keys and values of each layer
      if (each.name == "draft_first_hidden")
        made.end = each.bytes / (limits.max_requests + 1) * limits.max_requests;
      if (each.name.ends_with("kv_cache")) {
        made.stride = each.bytes / (2 * executor.kv_cache().layout.layers);
        made.begin = made.stride / limits.kv_pages;
        made.end = made.stride;
      }
      made.copy = buffer(device_memory(test_device()), each.bytes);
      executor.stream().copy(made.copy.data(), made.from, each.bytes);
      made.bytes = each.bytes;
      parts.push_back(std::move(made));
    }
  }

  /// Names of what is no longer as it was.
  std::string changed(stream_ref at) const {
    std::string names;
    for (const part& each : parts) {
      std::vector<std::byte> before(each.bytes), now(each.bytes);
      at.copy(before.data(), each.copy.data(), each.bytes);
      at.copy(now.data(), each.from, each.bytes);
      at.synchronize();
      for (std::size_t line = 0; line + each.stride <= each.bytes; line += each.stride)
        if (!std::equal(before.begin() + line + each.begin, before.begin() + line + each.end,
                        now.begin() + line + each.begin)) {
          names += each.name + " ";
          break;
        }
    }
    return names;
  }
  std::size_t size() const { return parts.size(); }

 private:
  struct part {
    std::string name;
    const std::byte* from;
    std::size_t stride, begin, end;  // of each line of `stride` bytes
    std::size_t bytes = 0;
    buffer copy{};
  };
  std::vector<part> parts;
};

step_limits smaller_than(const step_executor& executor) {
  step_limits limits = executor.limits();
  limits.max_rows = 2;
  limits.max_draft_tokens = 2;
  limits.max_step_tokens = 12;
  limits.in_flight = 2;
  return limits;
}

void recapture(step_executor& executor, const step_limits& limits) {
  const executor_options buckets = few_buckets(limits);
  executor.recapture(limits, buckets.row_buckets, buckets.token_buckets);
}

}  // namespace

TEST_CASE("recapture-live: smaller limits and larger ones again, with steps in flight and drafts under way") {
  const tiny_with_draft t;
  constexpr int requests = 4, most = 5;
  const int length = test_small() ? 48 : 120;
  // drafts of a round, and the captures that it takes
  const int many = test_small() ? 2 : most;
  const std::vector<int> lengths = test_small() ? std::vector{many} : std::vector<int>();
  reference::random_integers random(test_seed());
  reference::llama_reference plain(t.weights);
  for (const bool poison : {false, true}) {
    if (test_small() && !poison) continue;  // most of the time goes into captures
    CAPTURE(poison);
    seen_memory memory;
    step_executor executor = t.executor({.rows = requests,
                                         .most = most,
                                         .poison = poison,
                                         .step_tokens = 64,
                                         .options = {.memory = &memory, .draft_lengths = lengths}});
    executor.capture();
    const step_limits wide = executor.limits(), narrow = smaller_than(executor);
    std::vector<text> prompts, want;
    std::vector<step_row> all;
    for (int r = 0; r < requests; ++r) {
      auto [prompt, answer] = ask_reference(plain, random, static_cast<int>(random.between(2, 15)), length);
      prompts.push_back(std::move(prompt));
      want.push_back(std::move(answer));
      all.push_back({.request = executor.open(),
                     .tokens = static_cast<std::int32_t>(prompts[r].size()),
                     .token_ids = prompts[r]});
    }
    // what a row emitted is the text that its length says: a row's first token comes with its prompt
    const auto check = [&](const step_ticket& ticket, int first, int count) {
      const auto results = executor.wait(ticket);
      REQUIRE(std::ssize(results) == count);
      for (int row = 0; row < count; ++row) {
        const int r = first + row;
        const auto emitted = executor.emitted(ticket, row);
        CHECK(results[row].status == 0);
        CHECK(!emitted.empty());
        const auto end = results[row].length - std::ssize(prompts[r]) + 1;
        REQUIRE(end <= std::ssize(want[r]));
        CHECK(std::equal(emitted.begin(), emitted.end(), want[r].begin() + end - std::ssize(emitted)));
      }
    };
    const auto verify = [&](int first, int count, int drafts) {
      std::vector<step_row> rows;
      for (int r = first; r < first + count; ++r)
        rows.push_back({.request = all[r].request, .tokens = drafts + 1});
      return *executor.replay(
          {.kind = step_kind::target_verify, .rows = rows, .draft_length = drafts, .extend_draft = true});
    };
    check(*executor.replay({.kind = step_kind::extend, .rows = all, .extend_draft = true}), 0, requests);
    check(verify(0, requests, many), 0, requests);
    for (int round = 0; round < (test_small() ? 1 : 2); ++round) {
      // smaller: two rounds are in flight, and drafts are made for the next
      verify(0, requests, 2);
      step_ticket lost = verify(0, requests, many);
      const lasting_copy before(executor, memory);
      CHECK(before.size() > 7);
      recapture(executor, narrow);
      CHECK(before.changed(executor.stream()) == "");
      CHECK_THROWS_WITH_AS(executor.wait(lost), doctest::Contains("overwritten"), invalid_argument);
      CHECK(executor.limits().max_rows == 2);
      // four requests are open, and two of them at a time go on; what is over the new limits is refused by name
      CHECK_THROWS_WITH_AS(verify(0, requests, 1), doctest::Contains("4 rows are over max_rows 2"),
                           invalid_argument);
      CHECK_THROWS_WITH_AS(verify(0, 2, 3),
                           doctest::Contains("a draft length of 3 is over max_draft_tokens 2"),
                           invalid_argument);
      const text long_prompt(13, 1);
      CHECK_THROWS_WITH_AS(
          executor.replay(
              step_kind::extend,
              std::vector{step_row{.request = all[0].request, .tokens = 13, .token_ids = long_prompt}}),
          doctest::Contains("13 tokens are over max_step_tokens 12"), invalid_argument);
      for (int i = 0; i < 4; ++i) check(verify(i % 2 * 2, 2, 2), i % 2 * 2, 2);
      // larger again
      lost = verify(0, 2, 2);
      verify(2, 2, 2);
      const lasting_copy again(executor, memory);
      recapture(executor, wide);
      CHECK(again.changed(executor.stream()) == "");
      CHECK_THROWS_WITH_AS(executor.wait(lost), doctest::Contains("overwritten"), invalid_argument);
      for (int i = 0; i < 2; ++i) check(verify(0, requests, many), 0, requests);
    }
    CHECK_FALSE(executor.fault());
    for (const step_row& each : all) executor.close(each.request);
    executor.stream().synchronize();
  }
}

TEST_CASE(
    "recapture-live: a loop's texts go on, and limits that its live texts do not fit are refused by name") {
  const tiny_with_draft t;
  constexpr int rows = 4, most = 2;
  const int texts = test_small() ? 5 : 7, longest = test_small() ? 60 : 120;
  reference::random_integers random(test_seed());
  step_executor plain = t.tiny::executor(1);
  plain.capture();
  std::vector<asked> all;
  for (int i = 0; i < texts; ++i) {
    const text prompt = random_prompt(random, static_cast<int>(random.between(1, 20)), 509);
    // the last two are long, so that at last they are alone
    all.push_back({prompt, text_of(plain, prompt, (i < texts - 2 ? 12 : longest) + i)});
  }
  for (const bool run_ahead : {true, false}) {
    if (test_small() && !run_ahead) continue;
    CAPTURE(run_ahead);
    step_executor executor = t.executor({.rows = rows,
                                         .most = 4,
                                         .poison = run_ahead,
                                         .step_tokens = 64,
                                         .options = {.draft_lengths = {most}}});
    executor.capture();
    speculative_loop loop(executor,
                          {.drafts = draft_source::model(), .draft_length = most, .run_ahead = run_ahead});
    std::vector<heard> got(texts);
    for (int i = 0; i < texts; ++i)
      submit(loop, all[i].prompt, static_cast<int>(all[i].answer.size()), got[i]);
    const step_limits wide = executor.limits(), narrow = smaller_than(executor);
    const auto change = [&](const step_limits& limits) {
      const executor_options buckets = few_buckets(limits);
      loop.recapture(limits, buckets.row_buckets, buckets.token_buckets);
    };
    const auto ended = [&] { return std::ranges::count(got, true, &heard::ended); };
    for (int i = 0; i < 3; ++i) loop.step();
    CHECK_THROWS_WITH_AS(change(narrow), doctest::Contains("texts are live, over max_rows 2"),
                         invalid_argument);
    step_limits wrong = wide;
    wrong.max_draft_tokens = 1;
    CHECK_THROWS_WITH_AS(change(wrong), doctest::Contains("draft_length 2 is over max_draft_tokens 1"),
                         invalid_argument);
    wrong = wide;
    wrong.in_flight = 1;
    CHECK_THROWS_WITH_AS(change(wrong), doctest::Contains("in_flight of 2 or more"), invalid_argument);
    wrong = wide;
    wrong.max_context = 512;
    CHECK_THROWS_WITH_AS(change(wrong), doctest::Contains("max_context is 256"), invalid_argument);
    loop.step();
    step_limits other = wide;
    other.max_draft_tokens = 3;
    other.in_flight = 3;
    change(other);
    while (ended() < texts - 2) REQUIRE(loop.step());
    change(narrow);
    for (int i = 0; i < 4; ++i) loop.step();
    CHECK(ended() < texts);
    change(wide);
    loop.run();
    for (int i = 0; i < texts; ++i) {
      CHECK(got[i].ended);
      CHECK(got[i].tokens == all[i].answer);
    }
    CHECK_FALSE(executor.fault());
  }
}
