// Random arrivals, lengths, ends, K and buckets, for as long as one likes: STEPGRAPH_SOAK_REPLAYS=100000.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "graphs/counters.hpp"
#include "runtime/speculative_loop.hpp"
#include "tests/allocation_counter.hpp"
#include "tests/runtime/tiny_fixture.hpp"

using namespace stepgraph;

namespace {

std::uint64_t wanted_replays() {
  const char* const text = std::getenv("STEPGRAPH_SOAK_REPLAYS");
  return text ? std::strtoull(text, nullptr, 10) : test_small() ? 60 : 600;
}

/// What this process holds, of what a leak would show in.
struct held_memory {
  std::int64_t blocks = live_host_allocations();  // given out by operator new
  std::int64_t resident = 0;                      // bytes; the driver's own heap too
  std::size_t device_free = test_device().is_host() ? 0 : test_device().free_bytes();

  held_memory() {
    std::int64_t pages = 0;
    if (std::ifstream("/proc/self/statm") >> pages >> pages) resident = pages * 4096;
  }
};

/// A prompt, and what greedy decoding says to it.
struct known_text {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> text;
};

std::vector<known_text> known_texts(const tiny& t, reference::random_integers& random, int count,
                                    int length) {
  reference::llama_reference plain(t.weights);
  std::vector<known_text> texts;
  for (int i = 0; i < count; ++i) {
    auto prompt = random_prompt(random, static_cast<int>(random.between(1, 40)), t.weights.config.vocab_size);
    auto text = reference_text(plain, prompt, length);
    texts.push_back({std::move(prompt), std::move(text)});
  }
  return texts;
}

/// One submitted text: what has been emitted must be how the known one begins.
struct running_text {
  const known_text* known;
  int budget;
  int emitted = 0;
  bool right = true;
};

}  // namespace

TEST_CASE("soak: random arrivals, ends, K and batches, and no text, no page and no byte is lost") {
  constexpr int rows = 8, drafts = 4, longest = 48;
  const tiny t;
  const std::uint64_t replays = wanted_replays();
  reference::random_integers random(test_seed());
  const std::vector<known_text> texts = known_texts(t, random, test_small() ? 4 : 24, longest);
  step_executor executor = t.executor(rows, {.finish = finish_options{}}, drafts);
  executor.capture();
  const std::size_t captures = executor.captures().size();
  const std::int64_t pages = executor.free_pages();
  const auto launched = [&executor] {
    std::uint64_t all = 0;
    for (const bucket_statistics& each : executor.statistics().buckets) all += each.replays;
    return all;
  };

  std::map<generation_id, running_text> running;
  std::uint64_t finished = 0, stopped = 0, wrong = 0, told = replays / 10;
  activity at_start{};
  held_memory held;
  bool warm = false;
  const auto check_flat = [&] {
    const held_memory now;
    CHECK(now.blocks < held.blocks + 64);
    if (replays <= 5000) return;  // a page here or there
    std::printf(
        "soak: %lld blocks on the heap, resident %+.2f MiB, free on the device %+.2f MiB since the first "
        "tenth\n",
        static_cast<long long>(now.blocks), double(now.resident - held.resident) / (1 << 20),
        (double(now.device_free) - double(held.device_free)) / (1 << 20));
    CHECK(now.resident - held.resident < 8 << 20);
    if (std::getenv("STEPGRAPH_TEST_ALONE")) CHECK(now.device_free == held.device_free);
  };
  for (std::uint64_t session = 0; launched() < replays; ++session) {
    if (!warm && launched() >= replays / 10) {  // lists have grown as far as they do
      warm = true;
      held = held_memory();
    }
    // drafts that are right as often as wrong, so that every accept length occurs; another mind each session
    const int mind = static_cast<int>(random.below(4));
    const auto propose = [&](std::span<const std::int32_t> history, draft_proposal proposal) {
      const auto most = static_cast<int>(proposal.tokens.size());
      for (const known_text& each : texts) {
        const std::size_t own = each.prompt.size();
        if (history.size() < own || !std::equal(each.prompt.begin(), each.prompt.end(), history.begin()))
          continue;
        const std::size_t at = history.size() - own;
        for (int i = 0; i < most; ++i) {
          const bool right = at + i < each.text.size() && !random.one_in(2 + mind);
          proposal.tokens[i] = right ? each.text[at + i] : static_cast<std::int32_t>(random.below(20));
        }
        return most;
      }
      return 0;
    };
    speculative_loop loop(executor, {.drafts = {.from = draft_source::where::host, .propose = propose},
                                     .draft_length = drafts,
                                     .choose_draft_length =
                                         [&](std::uint64_t, int) {
                                           return mind == 0 ? 0 : static_cast<int>(random.between(0, drafts));
                                         },
                                     .run_ahead = session % 3 != 0});
    const int arrivals = static_cast<int>(random.between(1, 40));
    for (int i = 0; i < arrivals || !running.empty();) {
      for (; i < arrivals && (running.empty() || random.one_in(3)); ++i) {
        const known_text& known = texts[random.below(static_cast<std::int64_t>(texts.size()))];
        const int budget = static_cast<int>(random.between(1, longest));
        const auto id = std::make_shared<generation_id>(0);
        const auto mine = std::make_shared<running_text>(running_text{&known, budget});
        *id = loop.submit(
            {.prompt = known.prompt,
             .max_tokens = budget,
             .on_token =
                 [mine](std::int32_t token) {
                   const auto at = static_cast<std::size_t>(mine->emitted++);
                   mine->right &= at < mine->known->text.size() && mine->known->text[at] == token;
                 },
             .on_end =
                 [&, mine, id](const generation_end& end) {
                   if (end.reason == finish_reason::host_stop)
                     ++stopped;
                   else if (end.reason == finish_reason::token_budget && mine->emitted == mine->budget)
                     ++finished;
                   else
                     mine->right = false;
                   wrong += !mine->right;
                   running.erase(*id);
                 }});
        running.emplace(*id, *mine);
      }
      loop.step();
      if (!running.empty() && random.one_in(40)) {
        auto victim = running.begin();
        std::advance(victim, random.below(static_cast<std::int64_t>(running.size())));
        const generation_id id = victim->first;
        loop.stop(id);
      }
    }
    loop.run();
    REQUIRE(running.empty());
    if (session == 0) at_start = activity_now();
    if (replays > 5000 && launched() >= told) {
      std::printf("soak: %llu of %llu replays, %llu texts ended, %llu stopped\n",
                  static_cast<unsigned long long>(launched()), static_cast<unsigned long long>(replays),
                  static_cast<unsigned long long>(finished), static_cast<unsigned long long>(stopped));
      std::fflush(stdout);
      told += replays / 10;
    }
  }
  if (warm) check_flat();
  CHECK(wrong == 0);
  CHECK(finished > 0);
  CHECK_FALSE(executor.fault());
  CHECK(executor.captures().size() == captures);
  // all pages are back once every step is done
  executor.stream().synchronize();
  const request_id last = executor.open();
  const std::vector<std::int32_t> token{1};
  executor.wait(*executor.replay(step_kind::extend, std::vector{step_row{last, 1, token}}));
  CHECK(executor.free_pages() == pages - 1);
  executor.close(last);
  const activity did = activity_now() - at_start;
  CHECK(did.captures == 0);
  CHECK(did.instantiations == 0);
  CHECK(did.allocations == 0);
}
