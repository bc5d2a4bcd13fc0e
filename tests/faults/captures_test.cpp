// What is captured, when, and that a replay is nothing but a replay: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

std::vector<std::int32_t> tokens_of(std::span<const row_result> results) {
  std::vector<std::int32_t> tokens;
  for (const row_result& row : results) tokens.push_back(row.token);
  return tokens;
}

}  // namespace

TEST_CASE("stale-all: with everything else wild before each step, a replay equals a step without a graph") {
  const tiny t;
  reference::random_integers random(test_seed());
  step_executor replayed = t.executor(4, {.poison = true}), eager = t.executor(4, {.poison = true});
  replayed.capture();
  std::vector<request_id> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(replayed.open());
    REQUIRE(eager.open() == requests.back());
  }
  for (int i = 0; i < test_rounds(40); ++i) {
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<step_row> rows;
    for (int r = 0; r < 4; ++r)
      if (random.below(3) > 0)
        tokens.push_back(
            random_prompt(random, static_cast<int>(random.between(1, 4)), t.weights.config.vocab_size));
      else
        tokens.emplace_back();
    for (int r = 0; r < 4; ++r)
      if (!tokens[r].empty() && replayed.length_bound(requests[r]) + 4 <= 256)
        rows.push_back({.request = requests[r],
                        .tokens = static_cast<std::int32_t>(tokens[r].size()),
                        .token_ids = tokens[r]});
    const auto got = tokens_of(replayed.wait(*replayed.replay(step_kind::extend, rows)));
    CHECK(got == tokens_of(eager.wait(eager.run_eager(step_kind::extend, rows))));
  }
}

TEST_CASE("capture-order: in whatever order steps are defined, their captures have what they need") {
  const tiny t;
  std::vector<step_definition> steps = t.model->steps(true);
  reference::random_integers random(test_seed());
  const auto prompt = random_prompt(random, 9, t.weights.config.vocab_size);
  std::vector<int> order(steps.size());
  for (int i = 0; i < static_cast<int>(order.size()); ++i) order[i] = i;
  std::vector<std::int32_t> text;
  do {
    std::vector<step_definition> ordered;
    for (const int i : order) {
      step_definition step = steps[i];
      step.body = [body = step.body, asked = step.scratch_bytes](const step_context& context) {
        REQUIRE(context.scratch.size() >= asked(context.key.rows, context.key.tokens));
        body(context);
      };
      ordered.push_back(std::move(step));
    }
    step_executor executor(test_device(), t.limits(2, 3), t.model->layout(), std::move(ordered),
                           few_buckets(t.limits(2, 3)));
    executor.capture();
    const auto mine = text_of(executor, prompt, 12);
    if (text.empty()) text = mine;
    CHECK(mine == text);
  } while (std::ranges::next_permutation(order).found);
}

TEST_CASE("alternate: step kinds in turn capture, allocate and synchronise nothing") {
  const tiny t;
  step_executor executor = t.executor(2, {}, 3);
  executor.capture();
  const std::size_t captures = executor.captures().size();
  const std::vector<std::int32_t> prompt{1, 2}, drafts{3, 4, 5};
  activity did{};
  request_id request = executor.open();
  int length = 0;
  for (int i = 0; i < test_rounds(1000); ++i) {
    if (length == 0)
      executor.wait(*executor.replay(step_kind::extend, std::vector{step_row{request, 2, prompt}}));
    const std::vector<step_row> rows[]{{{request, 1, {}}}, {{request, 4, drafts}}, {{request, 2, prompt}}};
    const step_kind kinds[]{step_kind::decode, step_kind::target_verify, step_kind::extend};
    const activity before = activity_now();
    const auto ticket = executor.replay(kinds[i % 3], rows[i % 3]);
    did = activity_now() - before;
    REQUIRE(ticket);
    CHECK(did.captures == 0);
    CHECK(did.instantiations == 0);
    CHECK(did.allocations == 0);
    CHECK(did.synchronizations == 0);
    length = executor.wait(*ticket)[0].length;
    if (length > 240) {  // another request before the context is full
      executor.close(request);
      request = executor.open();
      length = 0;
    }
  }
  CHECK(executor.captures().size() == captures);
}

TEST_CASE(
    "alternate: rounds with the draft's steps, without and with drafts in turn, and nothing but launches") {
  const tiny_with_draft t;
  constexpr int most = 3;
  step_executor executor = t.executor({.rows = 2, .most = most, .step_tokens = 16});
  executor.capture();
  const std::size_t captures = executor.captures().size();
  const std::vector<std::int32_t> prompt{1, 2}, drafts{3, 4};
  std::vector<step_round> rounds{
      {.kind = step_kind::extend, .extend_draft = true},         // the prompt: two steps
      {.kind = step_kind::target_verify, .draft_length = most},  // draft decodes before it
      {.kind = step_kind::decode, .extend_draft = true},
      {.kind = step_kind::target_verify, .draft_length = 2, .extend_draft = true},  // all three
      {.kind = step_kind::target_verify, .draft_length = 0, .extend_draft = true},  // the host's drafts
      {.kind = step_kind::decode}};
  const int launches[]{2, 2, 2, 3, 2, 1};
  request_id request = executor.open();
  int length = 0;
  for (int i = 0; i < test_rounds(600); ++i) {
    const int which = length == 0 ? 0 : i % 6;
    const step_row rows[]{{request, 2, prompt}, {request, most + 1},  {request, 1},
                          {request, 3},         {request, 3, drafts}, {request, 1}};
    step_round& round = rounds[which];
    round.rows = std::span(rows + which, 1);
    const activity before = activity_now();
    const auto ticket = executor.replay(round);
    const activity did = activity_now() - before;
    REQUIRE(ticket);
    CHECK(did.launches == launches[which]);
    CHECK(did.captures == 0);
    CHECK(did.instantiations == 0);
    CHECK(did.allocations == 0);
    CHECK(did.synchronizations == 0);
    length = executor.wait(*ticket)[0].length;
    CHECK(length > 0);
    if (length > 240) {  // another request before the context is full
      executor.close(request);
      request = executor.open();
      length = 0;
    }
  }
  CHECK(executor.captures().size() == captures);
  CHECK_FALSE(executor.fault());
}

TEST_CASE("coverage: every number of rows and tokens that is legal has its capture") {
  constexpr int rows = 6, drafts = 4;
  const tiny t;
  step_executor executor = t.executor(rows, {.token_buckets = bucket_policy::exactly({6, 11, 30})}, drafts);
  executor.capture();
  std::set<step_key> captured;
  for (const capture_report& each : executor.captures()) captured.insert(each.key);
  std::vector<request_id> requests;
  const std::vector<std::int32_t> prompt{1};
  std::vector<step_row> first;
  for (int r = 0; r < rows; ++r) {
    requests.push_back(executor.open());
    first.push_back({.request = requests.back(), .tokens = 1, .token_ids = prompt});
  }
  executor.wait(*executor.replay(step_kind::extend, first));
  const std::vector<std::int32_t> ids(drafts, 2);
  for (int live = 1; live <= rows; ++live)
    for (int tokens = 1; tokens <= drafts + 1; ++tokens) {
      std::vector<step_row> verify;
      for (int r = 0; r < live; ++r)
        verify.push_back(
            {.request = requests[r], .tokens = tokens, .token_ids = std::span(ids).first(tokens - 1)});
      const auto before = executor.statistics().eager_steps;
      CHECK_NOTHROW(executor.wait(*executor.replay(step_kind::target_verify, verify)));
      CHECK(executor.statistics().eager_steps == before);
    }
  CHECK(captured.size() == executor.captures().size());
}

TEST_CASE("coverage: rows with different numbers of tokens, none among them, have their capture") {
  constexpr int rows = 6, drafts = 4, width = drafts + 1;
  const tiny t;
  step_executor executor = t.executor(rows, {.token_buckets = bucket_policy::exactly({6, 11, 30})}, drafts);
  executor.capture();
  reference::random_integers random(test_seed());
  const std::vector<std::int32_t> prompt{1}, ids(drafts, 2);
  for (int live = 1; live <= rows; ++live) {
    std::vector<step_row> batch;
    for (int r = 0; r < live; ++r)
      batch.push_back({.request = executor.open(), .tokens = 1, .token_ids = prompt});
    const std::vector<step_row> opened = batch;
    executor.wait(*executor.replay(step_kind::extend, batch));
    // every sum of tokens that `live` rows can have, packed into the first rows, the last, or anyhow
    for (int tokens = 0; tokens <= live * width; ++tokens) {
      CAPTURE(live);
      CAPTURE(tokens);
      std::vector<int> counts(live, 0);
      for (int left = tokens; left > 0;) {
        int& count = counts[random.below(live)];
        const int more = std::min<int>({left, width - count, static_cast<int>(random.between(1, width))});
        count += more;
        left -= more;
      }
      if (tokens % 3 != 2)
        std::ranges::sort(counts, [&](int a, int b) { return tokens % 3 == 0 ? a > b : a < b; });
      for (int r = 0; r < live; ++r) {
        batch[r].tokens = counts[r];
        batch[r].token_ids = std::span(ids).first(std::max(counts[r] - 1, 0));
      }
      const auto before = executor.statistics().eager_steps;
      std::optional<step_ticket> ticket;
      CHECK_NOTHROW(ticket = executor.replay(step_kind::target_verify, batch));
      if (!ticket) continue;
      const auto results = executor.wait(*ticket);
      for (int r = 0; r < live; ++r) {
        CHECK(results[r].status == 0);
        CHECK((results[r].count > 0) == (counts[r] > 0));
      }
      CHECK(executor.statistics().eager_steps == before);
    }
    for (const step_row& each : opened) executor.close(each.request);
  }
  CHECK_FALSE(executor.fault());
}

TEST_CASE("pdl-race: in a chain of steps each reads what the one before wrote, replay after replay") {
  constexpr int rows = 5, chain = 64, columns = 256;
  constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};
  const stream at(test_device());
  std::vector<std::int32_t> pages(rows * columns), start{0, 1, 31, 100, 2};
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i) + 1;
  const device_vector<std::int32_t> table(at.ref(), pages), lengths(at.ref(), start), last(at.ref(), rows, 3);
  std::optional<step_context> seen;
  step_executor executor(
      test_device(),
      {.max_rows = rows,
       .max_step_tokens = rows,
       .max_requests = rows,
       .max_context = columns * 4,
       .page_size = 4,
       .kv_pages = rows * columns + 1,
       .vocab_size = 10},
      layout,
      {{.kind = step_kind::decode,
        .variant = 0,
        .body = [&](const step_context& step) { seen = step; },  // the executor's own kernels alone
        .scratch_bytes = {}}},
      {.stream = at.ref(),
       .requests = adopted_requests{.source = {.table = table.data(),
                                               .row_stride = columns,
                                               .requests = rows,
                                               .columns = columns,
                                               .page_shift = 2,
                                               .page_granular = true,
                                               .pool_pages = 0},
                                    .seq_lens = lengths.data(),
                                    .last_token = last.data()},
       .row_buckets = bucket_policy::exactly({rows})});
  std::vector<step_row> step;
  for (int r = 0; r < rows; ++r) step.push_back({.request = r});
  executor.wait(executor.run_eager(step_kind::decode, step));  // stages the rows
  const graph_exec exec =
      capture(at.ref(), [&](stream_ref) {
        for (int i = 0; i < chain; ++i)
          executor.enqueue_step({.kind = step_kind::decode, .rows = rows, .tokens = rows});
      }).instantiate();
  for (int run = 0; run < test_rounds(3); ++run) {
    exec.launch(at.ref());
    const std::vector<std::int32_t> now = lengths.get();
    std::vector<std::int32_t> cached(rows);
    at.ref().copy(cached.data(), seen->cache_seqlens, rows * sizeof(std::int32_t));
    at.synchronize();
    for (int r = 0; r < rows; ++r) {
      CHECK(now[r] == start[r] + 1 + chain * (run + 1));
      CHECK(cached[r] == now[r]);
    }
  }
  CHECK_FALSE(executor.fault());
}
