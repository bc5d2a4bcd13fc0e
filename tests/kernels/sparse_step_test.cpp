#include <doctest/doctest.h>

#include <set>

#include "runtime/step_executor.hpp"
#include "tests/kernels/sparse_model.hpp"

using namespace stepgraph;
using namespace stepgraph::sparse_steps;

namespace {

/// Target and draft with the test's request table, whose lengths the test sets between rounds.
struct sparse_engine {
  sparse_engine(stream_ref at, const shared_inputs& inputs)
      : target(at, inputs, 11),
        draft(at, inputs, 12),
        seq_lens(at, max_rows, 0),
        last_token(at, max_rows, 0) {
    std::vector<step_definition> steps;
    for (const step_kind kind :
         {step_kind::decode, step_kind::extend, step_kind::target_verify, step_kind::draft_extend})
      steps.push_back(
          {.kind = kind,
           .variant = 0,
           .body = [this, kind](const step_context& step) { (is_draft(kind) ? draft : target)(step); },
           .scratch_bytes = {}});
    const kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 4};
    executor.emplace(
        test_device(),
        step_limits{.max_rows = max_rows,
                    .max_step_tokens = max_tokens,
                    .max_draft_tokens = max_drafts,
                    .max_requests = max_rows,
                    .max_context = max_context(),
                    .page_size = page_size,
                    .kv_pages = pool_pages,
                    .vocab_size = vocab,
                    .hidden_size = 4},
        layout, std::move(steps),
        executor_options{.stream = at,
                         .requests = adopted_requests{.source = inputs.source(),
                                                      .seq_lens = seq_lens.data(),
                                                      .last_token = last_token.data()},
                         .row_buckets = bucket_policy::exactly({2, max_rows}),
                         .token_buckets = bucket_policy::exactly({16, max_tokens}),
                         .draft = draft_shape{.layout = layout, .hidden_size = 4, .vocab_size = vocab}});
  }
  sparse_model target, draft;
  device_vector<std::int32_t> seq_lens, last_token;
  std::optional<step_executor> executor;
};

}  // namespace

TEST_CASE(
    "sparse: index kernels in the bodies of all kinds of steps, replayed, equal the steps run eagerly") {
  const stream at(test_device());
  shared_inputs inputs(at);
  sparse_engine replayed(at, inputs), eager(at, inputs);
  replayed.executor->capture();
  reference::random_integers random(test_seed());
  std::vector<std::int32_t> tokens;
  std::set<std::pair<step_kind, bool>> seen;
  for (int i = 0; i < (test_small() ? 9 : 45); ++i) {
    CAPTURE(i);
    const step_kind kinds[] = {step_kind::decode, step_kind::target_verify, step_kind::extend};
    const step_kind kind = kinds[i % 3];
    // other lengths than the round before left: short ones, and now and then one of the table's width
    std::vector<std::int32_t> lens, topk_indices;
    for (int r = 0; r < max_rows; ++r)
      lens.push_back(static_cast<std::int32_t>(random.one_in(4) ? random.below(3)
                                                                : random.below(sizes().usual - max_tokens)));
    if (i % 6 == 1) lens[random.below(max_rows)] = static_cast<std::int32_t>(sizes().longest);
    std::vector<step_row> rows;
    std::vector<std::int64_t> counts, lengths;
    std::vector<std::vector<std::int32_t>> drafts;
    std::int64_t fewest_pages = max_context() / page_size;
    for (int r = 0; r < max_rows; ++r) {
      if (random.one_in(4)) continue;
      const std::int64_t most = kind == step_kind::decode   ? 1
                                : kind == step_kind::extend ? max_tokens / max_rows
                                                            : 1 + max_drafts;
      const std::int64_t count = random.between(0, most);
      counts.push_back(count);
      lengths.push_back(lens[r] + count);
      fewest_pages = std::min<std::int64_t>(fewest_pages, lens[r] / page_size);
      drafts.emplace_back();
      for (std::int64_t t = kind == step_kind::target_verify ? 1 : 0; t < count; ++t)
        drafts.back().push_back(static_cast<std::int32_t>(random.below(vocab)));
      rows.push_back({.request = r, .tokens = static_cast<std::int32_t>(count)});
    }
    for (std::size_t r = 0; r < rows.size(); ++r) rows[r].token_ids = drafts[r];
    // a live token's row has a first page, and all rows have these
    for (int e = 0; e < max_tokens * topk; ++e)
      topk_indices.push_back(
          static_cast<std::int32_t>(random.one_in(3) ? -1 : random.below(fewest_pages + 1)));
    std::vector<float> logits;
    for (int e = 0; e < max_tokens * vocab; ++e) logits.push_back(static_cast<float>(random.below(1000)));
    inputs.indices.set(topk_indices);
    inputs.logits.set(logits);
    for (sparse_engine* each : {&replayed, &eager}) {
      each->seq_lens.set(lens);
      each->last_token.set(std::vector<std::int32_t>(max_rows, 1));
      each->target.poison();
      each->draft.poison();
    }
    const step_round round{.kind = kind, .rows = rows, .extend_draft = !random.one_in(3)};
    const auto got = replayed.executor->wait(*replayed.executor->replay(round)),
               want = eager.executor->wait(eager.executor->run_eager(round));
    at.synchronize();
    CHECK_FALSE(replayed.executor->fault());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      CHECK(got[r].status == static_cast<std::int32_t>(row_status::ok));
      CHECK(got[r].length == want[r].length);
      CHECK(got[r].count == want[r].count);
    }
    replayed.target.expect_equal(eager.target);
    replayed.draft.expect_equal(eager.draft);
    replayed.target.expect_rows(lengths, counts);
    if (round.extend_draft) CHECK(replayed.draft.tokens_gathered(rows.size()) >= 0);
    seen.insert({kind, round.extend_draft});
  }
  if (!test_small()) CHECK(seen.size() == 6);
}
