// Random arrivals, lengths, ends, K, drafts and buckets, for as long as one likes: STEPGRAPH_SOAK_REPLAYS=100000.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

#include "graphs/counters.hpp"
#include "tests/allocation_counter.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

constexpr int rows = 8, drafts = 4;
/// K of sessions with sampled rows, whose texts depend on it.
constexpr int sampled_drafts = 3;

std::uint64_t wanted_replays() {
  return number_from_environment("STEPGRAPH_SOAK_REPLAYS", test_small() ? 60 : 600);
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

/// Prompts, what greedy decoding says to each, and what each says by `settings`.
struct known_texts {
  std::vector<asked> greedy, sampled;
  std::vector<sampling_settings> settings;
  std::vector<std::int32_t> end_ids;  // each ends every text that comes by it
};

/// Greedy texts are the plain model's, sampled ones those of one request at a time, waited for, without a graph.
known_texts make_texts(const tiny_with_draft& t, reference::random_integers& random, int count, int length) {
  known_texts all;
  reference::llama_reference plain(t.weights);
  step_executor alone = t.executor(draft_setup{.rows = 1, .most = drafts, .sampled = true});
  for (int i = 0; i < count; ++i) {
    all.greedy.push_back(ask_reference(plain, random, static_cast<int>(random.between(1, 40)), length));
    const std::vector<std::int32_t>& prompt = all.greedy.back().prompt;
    all.settings.push_back({.temperature = 0.8f + 0.1f * float(random.below(5)),
                            .top_k = static_cast<int>(random.between(2, 40)),
                            .seed = static_cast<std::uint64_t>(random.below(1000)),
                            .request = std::uint64_t(i) + 1});
    speculative_loop loop(
        alone,
        {.drafts = draft_source::model(), .draft_length = sampled_drafts, .run_ahead = false, .eager = true});
    heard said;
    submit(loop, prompt, length, said, all.settings.back());
    loop.run();
    all.sampled.push_back({prompt, std::move(said.tokens)});
  }
  // late in every other text, so that few texts are short
  for (std::size_t i = 0; i < all.greedy.size(); i += 2)
    all.end_ids.push_back(all.greedy[i].answer[length / 2]);
  for (std::vector<asked>* const texts : {&all.greedy, &all.sampled})
    for (auto& [prompt, answer] : *texts)
      if (const auto end = std::ranges::find_first_of(answer, all.end_ids); end != answer.end())
        answer.erase(end + 1, answer.end());
  return all;
}

/// One submitted text: what has been emitted must be how the known one begins.
struct running_text {
  const asked* known;
  int budget;
  int emitted = 0;
  bool right = true;

  void hear(std::int32_t token) {
    const auto at = static_cast<std::size_t>(emitted++);
    right &= at < known->answer.size() && known->answer[at] == token;
  }
  /// False if it may not end so.
  bool may_end(finish_reason reason, const std::vector<std::int32_t>& end_ids) const {
    if (reason == finish_reason::host_stop) return right;
    if (reason == finish_reason::token_budget) return right && emitted == budget;
    return right && reason == finish_reason::end_of_sequence && emitted > 0 &&
           std::ranges::count(end_ids, known->answer[emitted - 1]) > 0;
  }
};

/// A drafter of chains that are right as often as wrong, so that every accept length occurs.
host_drafter half_right(const std::vector<asked>& all, reference::random_integers& random, int mind) {
  return [&all, &random, mind](std::span<const std::int32_t> history, draft_proposal proposal) {
    const auto most = static_cast<int>(proposal.tokens.size());
    for (const auto& [prompt, answer] : all) {
      if (history.size() < prompt.size() || !std::ranges::equal(history.first(prompt.size()), prompt))
        continue;
      const std::size_t at = history.size() - prompt.size();
      for (int i = 0; i < most; ++i) {
        const bool right = at + i < answer.size() && !random.one_in(2 + mind);
        proposal.tokens[i] = right ? answer[at + i] : static_cast<std::int32_t>(random.below(20));
      }
      return most;
    }
    return 0;
  };
}

/// Where a session's drafts come from; its host runs ahead where no drafts are its own.
enum class session_kind { device, device_sampled, host_chains, host_trees, device_waited };
constexpr int session_kinds = 5;

}  // namespace

TEST_CASE("soak: random arrivals, ends, K, drafts and batches, and no text, no page and no byte is lost") {
  const int longest = test_small() ? 12 : 48;
  const tiny_with_draft t(0.005f);
  const std::uint64_t replays = wanted_replays();
  reference::random_integers random(test_seed());
  const known_texts texts = make_texts(t, random, test_small() ? 3 : 16, longest);
  std::vector<int> dense(rows);
  std::iota(dense.begin(), dense.end(), 1);
  executor_options options;
  if (!test_small()) options.row_buckets = bucket_policy::exactly(dense);
  step_executor executor = t.executor(draft_setup{.rows = rows,
                                                  .most = drafts,
                                                  .sampled = true,
                                                  .trees = true,
                                                  .end_ids = texts.end_ids,
                                                  .options = options});
  executor.capture();
  const std::size_t captures = executor.captures().size();
  const std::int64_t pages = executor.free_pages();
  const auto launched = [&executor] {
    std::uint64_t all = 0;
    for (const bucket_statistics& each : executor.statistics().buckets) all += each.replays;
    return all;
  };

  std::map<generation_id, running_text> running;
  std::uint64_t finished = 0, ended_early = 0, stopped = 0, wrong = 0, told = replays / 10;
  std::uint64_t accepted_ahead = 0;
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
  for (std::uint64_t session = 0; launched() < replays || session < session_kinds; ++session) {
    if (!warm && session >= session_kinds &&
        launched() >= replays / 10) {  // lists have grown as far as they do
      warm = true;
      held = held_memory();
    }
    const auto kind = static_cast<session_kind>(session % session_kinds);
    const bool sampled = kind == session_kind::device_sampled;
    const int mind = static_cast<int>(random.below(4));  // another each session
    draft_source source = draft_source::model();
    if (kind == session_kind::host_chains)
      source = {.from = draft_source::where::host, .propose = half_right(texts.greedy, random, mind)};
    if (kind == session_kind::host_trees)
      source = {.from = draft_source::where::host,
                .propose = growing_trees(texts.greedy, t.weights.config.vocab_size, session),
                .trees = true};
    speculative_loop loop(executor, {.drafts = std::move(source),
                                     .draft_length = drafts,
                                     .choose_draft_length =
                                         [&](std::uint64_t, int) {
                                           if (sampled) return sampled_drafts;
                                           return mind == 0 ? 0 : static_cast<int>(random.between(0, drafts));
                                         },
                                     .run_ahead = kind != session_kind::device_waited});
    const int arrivals = static_cast<int>(random.between(1, test_small() ? 4 : 24));
    for (int i = 0; i < arrivals || !running.empty();) {
      for (; i < arrivals && (running.empty() || random.one_in(3)); ++i) {
        const auto which = random.below(std::ssize(texts.greedy));
        const bool draws = sampled && !random.one_in(3);  // greedy rows among those that draw
        const asked& known = (draws ? texts.sampled : texts.greedy)[which];
        const int budget = static_cast<int>(random.between(1, longest));
        const auto id = std::make_shared<generation_id>(0);
        const auto mine = std::make_shared<running_text>(running_text{&known, budget});
        *id = loop.submit({.prompt = known.prompt,
                           .max_tokens = budget,
                           .sampling = draws ? texts.settings[which] : sampling_settings{},
                           .on_token = [mine](std::int32_t token) { mine->hear(token); },
                           .on_end =
                               [&, mine, id](const generation_end& end) {
                                 stopped += end.reason == finish_reason::host_stop;
                                 finished += end.reason == finish_reason::token_budget;
                                 ended_early += end.reason == finish_reason::end_of_sequence;
                                 wrong += !mine->may_end(end.reason, texts.end_ids);
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
    if (kind == session_kind::device || sampled) accepted_ahead += loop.statistics().accepted;
    if (session == 0) at_start = activity_now();
    if (replays > 5000 && launched() >= told) {
      std::printf("soak: %llu of %llu replays, %llu texts ended by budget, %llu by an end id, %llu stopped\n",
                  static_cast<unsigned long long>(launched()), static_cast<unsigned long long>(replays),
                  static_cast<unsigned long long>(finished), static_cast<unsigned long long>(ended_early),
                  static_cast<unsigned long long>(stopped));
      std::fflush(stdout);
      told += replays / 10;
    }
  }
  if (warm) check_flat();
  CHECK(wrong == 0);
  CHECK(finished > 0);
  if (!test_small()) {
    CHECK(ended_early > 0);
    CHECK(accepted_ahead > 0);
  }
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

TEST_CASE("soak: a number of replays that is none is refused by name") {
  const char* const name = "STEPGRAPH_SOAK_REPLAYS_TEST";
  CHECK(number_from_environment(name, 60) == 60);
  for (const char* const bad : {"garbage", "", "0", "-5", "100k", " 7", "99999999999999999999999"}) {
    CAPTURE(bad);
    setenv(name, bad, 1);
    CHECK_THROWS_WITH_AS(static_cast<void>(number_from_environment(name, 60)),
                         doctest::Contains("STEPGRAPH_SOAK_REPLAYS_TEST must be a positive number"),
                         std::invalid_argument);
  }
  setenv(name, "100000", 1);
  CHECK(number_from_environment(name, 60) == 100000);
  unsetenv(name);
}
