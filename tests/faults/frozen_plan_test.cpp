// Plans made from the lengths of the moment, under one capture: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "tests/device_vector.hpp"
#include "tests/rounded_weights.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

constexpr int rows = 3, drafts = 3, page_size = 8, page_shift = 3, chunk = 256;

llama::llama_weights weights_of(int context) {
  llama::llama_config config = llama::tiny_config();
  config.max_context = context;
  return llama::make_tiny_weights(7, config);
}

/// A model to which token 0 says nothing: its states and values are zeros. A draft that is the model itself reads
/// the text from its second token on; where that begins with many of these, it reads almost the same.
llama::llama_weights with_silent_token(llama::llama_weights weights) {
  struct owned {
    std::shared_ptr<const void> original;
    std::vector<std::byte> embedding;
  };
  auto held = std::make_shared<owned>();
  held->original = weights.storage;
  held->embedding.assign(weights.token_embedding.data.begin(), weights.token_embedding.data.end());
  std::fill_n(held->embedding.begin(), weights.token_embedding.columns * sizeof(float), std::byte{0});
  weights.token_embedding.data = weights.output.data = held->embedding;
  weights.storage = held;
  return weights;
}

/// Memory that executors share: an embedder's cache and request table, every page given.
struct shared_memory {
  const llama::llama_model& model;
  int context, columns = context / page_size;
  stream at{test_device()};
  device_vector<std::int32_t> table{at, pages()}, seq_lens{at, rows, 0}, last_token{at, rows, 0};
  buffer pool{device_memory(test_device()), kv_cache_bytes(model.layout(), page_size, rows* columns + 1)};

  text pages() const {
    text all(std::size_t(rows) * columns);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i) + 1;
    return all;
  }
};

/// An executor over it, whose bodies show where their logits are.
step_executor executor_over(shared_memory& memory, std::optional<step_context>& seen) {
  const step_limits limits{.max_rows = rows,
                           .max_step_tokens = chunk,
                           .max_draft_tokens = drafts,
                           .max_requests = rows,
                           .max_context = memory.context,
                           .page_size = page_size,
                           .vocab_size = memory.model.config().vocab_size};
  std::vector<step_definition> steps = memory.model.steps(true);
  for (step_definition& step : steps)
    step.body = [&seen, body = step.body](const step_context& context) {
      seen = context;
      seen->ranked_argmax = nullptr;  // or the head leaves no logits to compare
      body(*seen);
    };
  const kv_layout layout = memory.model.layout();
  return step_executor(test_device(), limits, layout, std::move(steps),
                       {.stream = memory.at.ref(),
                        .kv_cache = make_kv_cache(layout, page_size, rows * memory.columns + 1,
                                                  {memory.pool.data(), memory.pool.bytes()}),
                        .requests = adopted_requests{.source = {.table = memory.table.data(),
                                                                .row_stride = memory.columns,
                                                                .requests = rows,
                                                                .columns = memory.columns,
                                                                .page_shift = page_shift,
                                                                .page_granular = true,
                                                                .pool_pages = 0},
                                                     .seq_lens = memory.seq_lens.data(),
                                                     .last_token = memory.last_token.data()},
                        .row_buckets = bucket_policy::exactly({rows}),
                        .token_buckets = bucket_policy::exactly({rows * (drafts + 1), chunk})});
}

/// One step's logits and tokens.
struct step_result {
  std::vector<float> logits;
  text tokens;

  bool operator==(const step_result& other) const {
    return tokens == other.tokens && logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

step_result result_of(step_executor& executor, step_ticket ticket, const step_context& seen, int lines) {
  step_result result;
  for (int r = 0; r < rows; ++r) {
    result.tokens.push_back(executor.wait(ticket)[r].length);
    const auto emitted = executor.emitted(ticket, r);
    result.tokens.insert(result.tokens.end(), emitted.begin(), emitted.end());
  }
  result.logits.resize(std::size_t(lines) * executor.limits().vocab_size);
  executor.stream().copy(result.logits.data(), llama::llama_model::logits(seen),
                         result.logits.size() * sizeof(float));
  executor.stream().synchronize();
  return result;
}

/// Chunks of random tokens until the rows have these lengths.
void fill_to(step_executor& executor, const shared_memory& memory, const int (&lengths)[rows],
             reference::random_integers& random) {
  while (true) {
    const text now = memory.seq_lens.get();
    std::vector<text> prompts;
    std::vector<step_row> batch;
    int all = 0;
    for (int r = 0; r < rows; ++r) {
      const int count = std::clamp(lengths[r] - now[r], 0, chunk - all);
      all += count;
      prompts.push_back(random_prompt(random, count, memory.model.config().vocab_size));
      batch.push_back({r, count, {}});
    }
    if (all == 0) return;
    for (int r = 0; r < rows; ++r) batch[r].token_ids = prompts[r];
    executor.wait(*executor.replay(step_kind::extend, batch));
  }
}

}  // namespace

TEST_CASE("frozen-plan: at lengths across every threshold a replay leaves the logits of a fresh step") {
  for (const bool half : {false, true}) {
    if (half && test_device().is_host()) continue;  // the host has one kind of attention
    CAPTURE(half);
    const auto weights = weights_of(16384);
    const auto model = llama::make_llama(test_device(), half ? rounded(weights) : weights);
    shared_memory memory{*model, test_small() ? 320 : test_device().is_host() ? 2112 : 8448};
    std::optional<step_context> seen;
    step_executor executor = executor_over(memory, seen);
    executor.capture();
    reference::random_integers random(test_seed());
    const text guesses{1, 2, 3};
    // around each power of two, one row far behind, one that stays short
    for (int edge = test_small() ? 256 : 64; edge < memory.context; edge *= 2)
      for (const int length : {edge - drafts - 1, edge - 1, edge + 1}) {
        CAPTURE(length);
        fill_to(executor, memory, {length, length / 3, std::min(length, 5)}, random);
        const text before = memory.seq_lens.get(), last = memory.last_token.get();
        for (const bool verify : {false, true}) {
          std::vector<step_row> batch;
          for (int r = 0; r < rows; ++r)
            batch.push_back(verify ? step_row{r, drafts + 1, guesses} : step_row{r, 1, {}});
          const step_kind kind = verify ? step_kind::target_verify : step_kind::decode;
          const int lines = verify ? rows * (drafts + 1) : rows;
          const step_ticket ticket = *executor.replay(kind, batch);
          const step_result got = result_of(executor, ticket, *seen, lines);
          memory.seq_lens.set(before);
          memory.last_token.set(last);
          std::optional<step_context> fresh_seen;
          step_executor fresh = executor_over(memory, fresh_seen);
          const step_ticket again = fresh.run_eager(kind, batch);
          CHECK(result_of(fresh, again, *fresh_seen, lines) == got);
          memory.seq_lens.set(before);
          memory.last_token.set(last);
          CHECK_FALSE(fresh.fault());
        }
      }
    CHECK_FALSE(executor.fault());
  }
}

TEST_CASE("frozen-plan: the drafts of a draft like its target are kept at any length, as without a graph") {
  constexpr int most = 4;
  const tiny_with_draft t(with_silent_token(weights_of(4096)), 0.0f);
  const draft_setup how{.rows = 2,
                        .most = most,
                        .max_context = test_small()              ? 160
                                       : test_device().is_host() ? 800
                                                                 : 2304,
                        .step_tokens = 256,
                        .options = {.row_buckets = bucket_policy::exactly({2}),
                                    .token_buckets = bucket_policy::exactly({2 * (most + 1), 256}),
                                    .draft_lengths = {most}}};
  step_executor replayed = t.executor(how), eager = t.executor(how);
  replayed.capture();
  reference::random_integers random(test_seed());
  std::vector<text> prompts{random_prompt(random, 8, 509), random_prompt(random, 50, 509)};
  for (text& prompt : prompts) prompt.insert(prompt.begin(), 40, 0);
  std::vector<step_row> batch;
  for (const text& prompt : prompts) {
    batch.push_back({.request = replayed.open(),
                     .tokens = static_cast<std::int32_t>(prompt.size()),
                     .token_ids = prompt});
    REQUIRE(eager.open() == batch.back().request);
  }
  step_round round{.kind = step_kind::extend, .rows = batch, .extend_draft = true};
  int length = 0;
  std::vector<double> kept;  // of all drafts, by 128 tokens of length
  std::vector<int> of;
  while (length + most + 1 <= how.max_context) {
    const step_ticket ticket = *replayed.replay(round), other = eager.run_eager(round);
    length = 0;
    for (int r = 0; r < 2; ++r) {
      const row_result& row = replayed.wait(ticket)[r];
      CHECK(row.status == 0);
      length = std::max(length, row.length);
      const auto got = replayed.emitted(ticket, r), want = eager.emitted(other, r);
      REQUIRE(text(got.begin(), got.end()) == text(want.begin(), want.end()));
      const std::size_t part = row.length / 128;
      kept.resize(std::max(kept.size(), part + 1));
      of.resize(kept.size());
      if (round.kind == step_kind::target_verify) kept[part] += row.count - 1, of[part] += most;
      batch[r] = {.request = batch[r].request, .tokens = most + 1};
    }
    round = {.kind = step_kind::target_verify, .rows = batch, .draft_length = most, .extend_draft = true};
  }
  for (std::size_t part = 0; part < kept.size(); ++part) {
    CAPTURE(part);
    if (of[part] > 0) CHECK(kept[part] / of[part] >= (test_small() ? 0.8 : 0.9));  // small: a few dozen
  }
  CHECK_FALSE(replayed.fault());
}
