// Steps whose kernels may start before the one ahead has ended, and steps whose kernels may not: docs/faults.md.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <optional>

#include "graphs/error.hpp"
#include "kernels/programmatic_launch.hpp"
#include "tests/rounded_weights.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

/// What rounds of all step kinds leave behind: tokens, hidden states, logits, and both caches.
struct outcome {
  text tokens;
  std::vector<float> states;               // of the live tokens of each target step
  std::vector<float> logits;               // of steps that nothing followed
  std::vector<std::byte> cache;            // all pages of both caches but the sink's
  std::map<step_kind, std::size_t> edges;  // programmatic ones of the captures

  bool operator==(const outcome& other) const {
    return tokens == other.tokens && same(states, other.states) && same(logits, other.logits) &&
           cache == other.cache;
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
};

/// Adds `count` numbers of device memory.
void add(stream_ref at, std::vector<float>& to, const float* from, std::size_t count) {
  const std::size_t before = to.size();
  to.resize(before + count);
  at.copy(to.data() + before, from, count * sizeof(float));
  at.synchronize();
}

void add(stream_ref at, std::vector<std::byte>& to, const kv_cache_view& cache) {
  const std::size_t size = size_of(cache.layout.type);
  for (const kv_pages_view& layer : cache.layers)
    for (const void* half : {layer.keys, layer.values}) {
      const std::size_t before = to.size(), bytes = layer.page_stride * (layer.pages - 1) * size;
      to.resize(before + bytes);
      at.copy(to.data() + before, static_cast<const std::byte*>(half) + layer.page_stride * size, bytes);
    }
  at.synchronize();
}

outcome rounds(const tiny_with_draft& t, bool programmatic) {
  constexpr int rows = 3, most = 4;
  const int vocab = t.weights.config.vocab_size, hidden = t.weights.config.hidden_size;
  std::optional<step_context> target, draft;
  std::vector<step_definition> steps = t.model->steps(llama::step_choice{.verify = true});
  for (step_definition& step : t.draft.steps())
    if (!step.sampled) steps.push_back(std::move(step));
  for (step_definition& step : steps)
    step.body = [&, body = step.body](const step_context& context) {
      CHECK(programmatic_launches() == programmatic);
      (is_draft(context.key.kind) ? draft : target) = context;
      body(context);
    };
  step_limits limits = t.limits(rows, most);
  limits.hidden_size = hidden;
  limits.max_step_tokens = 64;
  step_executor executor(test_device(), limits, t.model->layout(), steps,
                         {.row_buckets = bucket_policy::exactly({4}),
                          .token_buckets = bucket_policy::exactly({64}),
                          .draft = t.draft.shape(),
                          .draft_lengths = {most},
                          .programmatic_launch = programmatic});
  outcome got;
  for (const capture_report& each : executor.capture()) got.edges[each.key.kind] += each.programmatic_edges;

  reference::random_integers random(test_seed());
  std::vector<text> prompts;
  std::vector<step_row> batch;
  for (int r = 0; r < rows; ++r) prompts.push_back(random_prompt(random, 3 + 7 * r, vocab));
  for (const text& prompt : prompts)
    batch.push_back({.request = executor.open(),
                     .tokens = static_cast<std::int32_t>(prompt.size()),
                     .token_ids = prompt});
  const auto run = [&](const step_round& round) {
    int tokens = 0;
    for (const step_row& row : batch) tokens += row.tokens;
    const step_ticket ticket = *executor.replay(round);
    for (int r = 0; r < rows; ++r) {
      got.tokens.push_back(executor.wait(ticket)[r].length);
      const auto emitted = executor.emitted(ticket, r);
      got.tokens.insert(got.tokens.end(), emitted.begin(), emitted.end());
    }
    add(executor.stream(), got.states, target->hidden, std::size_t(tokens) * hidden);
    if (!round.extend_draft)
      add(executor.stream(), got.logits, llama::llama_model::logits(*target), std::size_t(rows) * vocab);
  };
  run({.kind = step_kind::extend, .rows = batch, .extend_draft = true});
  for (int i = 0; i < test_rounds(12); ++i) {
    for (int r = 0; r < rows; ++r)  // a row sits out now and then, the others draft less or more
      batch[r] = {.request = batch[r].request, .tokens = (i + r) % 4 == 3 ? 0 : most + 1 - (i + r) % 3};
    run({.kind = step_kind::target_verify, .rows = batch, .draft_length = most, .extend_draft = true});
    for (step_row& row : batch) row.tokens = 1;
    // the drafts made for it are dropped, so that two target steps follow each other as well
    run({.kind = step_kind::decode, .rows = batch, .extend_draft = i % 2 == 0});
  }
  add(executor.stream(), got.cache, executor.kv_cache());
  add(executor.stream(), got.cache, *draft->kv);
  if (const auto fault = executor.fault())
    FAIL_CHECK(message(to_string(op_id(fault->op)), ", row ", fault->row, ": ",
                       to_string(row_status(fault->status)), ", ", fault->value));
  return got;
}

}  // namespace

TEST_CASE(
    "pdl-race: with programmatic edges and without, three runs each: the same bits in every step kind") {
  constexpr step_kind kinds[]{step_kind::decode, step_kind::extend, step_kind::target_verify,
                              step_kind::draft_extend, step_kind::draft_decode};
  llama::llama_config wide = llama::tiny_config();  // the sizes of logits that take clusters of blocks
  wide.vocab_size = 4608;
  for (const bool half : {false, true}) {
    CAPTURE(half);
    const tiny_with_draft t(
        half ? rounded(llama::make_tiny_weights(7, wide)) : llama::make_tiny_weights(7, llama::tiny_config()),
        0.01f);
    const outcome want = rounds(t, false);
    CHECK(want.states.size() > 0);
    for (const step_kind kind : kinds) {
      REQUIRE(want.edges.contains(kind));
      CHECK(want.edges.at(kind) == 0);
    }
    for (int run = 0; run < 3; ++run) {
      const outcome with = rounds(t, true);
      CHECK(with == want);
      if (run > 0) CHECK(rounds(t, false) == want);
      for (const step_kind kind : kinds)
        CHECK_MESSAGE((with.edges.at(kind) > 0) == !test_device().is_host(), to_string(kind));
    }
  }
}

TEST_CASE("a scope without programmatic launches ends with its block, and an inner one cannot allow them") {
  CHECK(programmatic_launches());
  {
    const programmatic_launch_scope off(false);
    CHECK_FALSE(programmatic_launches());
    {
      const programmatic_launch_scope on(true);
      CHECK_FALSE(programmatic_launches());
    }
    CHECK_FALSE(programmatic_launches());
  }
  CHECK(programmatic_launches());
}
