// Heads that leave the largest of their logits alone: the same texts, drafts kept, faults and ends as with logits that
// are passed over, whoever reads the ranked numbers. The "models" are tables, so that every answer can be read off them.
#include <doctest/doctest.h>

#include <limits>

#include "tests/device_vector.hpp"
#include "tests/runtime/draft_fixture.hpp"
#include "tests/runtime/table_model.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

constexpr int vocab = 30, draft_vocab = 26;
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
// a text that comes to `bad` goes no further; of `unsure` the draft knows nothing
constexpr std::int32_t bad = 28, unsure = 6;

std::int32_t after(std::int32_t token) {
  return (token + 7) % 26;
}

/// Tables of target and draft, which are often of one mind. Some tokens the draft does not have.
struct tables {
  std::vector<float> target, draft;
  std::vector<std::int32_t> target_ids, draft_ids;

  tables() : target(vocab * vocab), draft(vocab * draft_vocab), draft_ids(vocab, -1) {
    for (std::int32_t token = 0; token < vocab; ++token)
      if (token % 7 != 5) {
        draft_ids[token] = static_cast<std::int32_t>(target_ids.size());
        target_ids.push_back(token);
      }
    reference::random_integers random(5);
    for (std::int32_t token = 0; token < vocab; ++token) {
      // ties abound, and the lowest id wins
      for (int id = 0; id < vocab; ++id) target[token * vocab + id] = static_cast<float>(random.below(3));
      target[token * vocab + after(token)] = 9;
      if (token % 4 == 1) target[token * vocab + 29] = 9;
      for (int id = 0; id < draft_vocab; ++id)
        draft[token * draft_vocab + id] =
            target[token * vocab + target_ids[id]] + (token % 9 == 2 ? float(id % 7) * 2 : 0);
    }
    target[bad * vocab + 17] = nan_value;
    draft[unsure * draft_vocab + 3] = nan_value;
  }
};

/// What the target says after `prompt`, by the table; the last token of a text that comes to a NaN has none after it.
text answer(const tables& in, std::int32_t last, int count) {
  text out;
  for (int i = 0; i < count && last != bad; ++i) {
    const float* const line = in.target.data() + last * vocab;
    last = static_cast<std::int32_t>(std::max_element(line, line + vocab) - line);
    out.push_back(last);
  }
  return out;
}

struct outcome {
  std::vector<heard> texts;
  speculation_statistics done;
  std::int32_t fault = 0;
  std::vector<std::size_t> draft_nodes;
};

struct setup {
  head_leaves target, draft;
  int most = 4;
  bool poison = false;
};

outcome run(const tables& in, const std::vector<text>& prompts, int length, const setup& how) {
  const stream at(test_device());
  const device_vector<float> target(at, in.target), draft(at, in.draft);
  const device_vector<std::int32_t> target_ids(at, in.target_ids), draft_ids(at, in.draft_ids);
  const kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 8};
  const step_limits limits{.max_rows = 3,
                           .max_step_tokens = 24,
                           .max_draft_tokens = how.most,
                           .max_requests = 4,
                           .max_context = 128,
                           .page_size = 8,
                           .vocab_size = vocab,
                           .hidden_size = 8};
  std::vector<step_definition> steps;
  for (const step_kind kind : {step_kind::decode, step_kind::extend, step_kind::target_verify,
                               step_kind::draft_extend, step_kind::draft_decode}) {
    const auto lines = [kind](const step_key& key) {
      return kind == step_kind::target_verify ? key.tokens : key.rows;
    };
    const bool drafts = is_draft(kind);
    const int wide = drafts ? draft_vocab : vocab;
    const head_leaves leaves = drafts ? how.draft : how.target;
    steps.push_back(
        {.kind = kind,
         .body =
             [=, &target, &draft, &target_ids](const step_context& step) {
               auto* const logits = reinterpret_cast<float*>(step.scratch.data());
               const bool ranks = leaves != head_leaves::logits;
               launch_rows(
                   step.stream,
                   table_head{.table = drafts ? draft.data() : target.data(),
                              .vocab = wide,
                              .lines = lines(step.key),
                              .token_ids = step.token_ids,
                              .feed = leaves == head_leaves::ranked_feeds ? step.ranked_feed : ranked_feed{},
                              .source = kind == step_kind::target_verify ? nullptr : step.last_row,
                              .line = step.out_line,
                              .logits = ranks ? nullptr : logits,
                              .ranked = ranks ? step.ranked_argmax : nullptr});
               choose_tokens(step, {.data = logits,
                                    .stride = wide,
                                    .vocab_size = wide,
                                    .target_ids = drafts ? target_ids.data() : nullptr,
                                    .ranked = ranks,
                                    .reads_ranked_feed = leaves == head_leaves::ranked_feeds});
             },
         .scratch_bytes =
             [=](int rows, int tokens) {
               return sizeof(float) * wide * lines({.kind = kind, .rows = rows, .tokens = tokens});
             }});
  }
  executor_options options{.stream = at.ref(),
                           .draft = draft_shape{.layout = layout,
                                                .hidden_size = 8,
                                                .vocab_size = draft_vocab,
                                                .target_ids = target_ids.data(),
                                                .draft_ids = draft_ids.data()},
                           .finish = finish_options{}};
  options.poison = how.poison;
  step_executor executor(test_device(), limits, layout, steps, few_buckets(limits, std::move(options)));
  executor.capture();
  outcome out;
  out.texts.resize(prompts.size());
  for (const capture_report& each : executor.captures())
    if (each.key.kind == step_kind::draft_decode && each.key.steps == how.most - 1)
      out.draft_nodes.push_back(each.nodes);
  speculative_loop loop(executor, {.drafts = draft_source::model(),
                                   .draft_length = how.most,
                                   .choose_draft_length = [&](std::uint64_t round, int) {
                                     return static_cast<int>((round * 3 + 4) % (how.most + 1));
                                   }});
  for (std::size_t i = 0; i < prompts.size(); ++i)
    submit(loop, prompts[i], length + static_cast<int>(i % 3), out.texts[i]);
  loop.run();
  out.done = loop.statistics();
  if (const auto fault = executor.fault()) out.fault = fault->status;
  return out;
}

std::vector<text> some_prompts(int count) {
  reference::random_integers random(test_seed());
  std::vector<text> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(random_prompt(random, static_cast<int>(random.between(1, 9)), 26));
    if (i % 3 == 1) all.back().back() = bad;
  }
  return all;
}

}  // namespace

TEST_CASE("ranked heads: texts, drafts kept and faults are those of logits, whoever reads the numbers") {
  const tables in;
  const int length = test_small() ? 9 : 40;
  const std::vector<text> prompts = some_prompts(test_small() ? 4 : 9);
  const outcome want = run(in, prompts, length, {head_leaves::logits, head_leaves::logits});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CHECK(want.texts[i].tokens == answer(in, prompts[i].back(), length + static_cast<int>(i % 3)));
    CHECK(want.texts[i].end.status == (prompts[i].back() == bad ? row_status::nan_logits : row_status::ok));
  }
  // otherwise little is tested: drafts of every length were kept
  for (const std::uint64_t rounds : want.done.by_accepted) CHECK((test_small() || rounds > 0));
  for (const head_leaves target : {head_leaves::logits, head_leaves::ranked})
    for (const head_leaves draft : {head_leaves::logits, head_leaves::ranked, head_leaves::ranked_feeds})
      for (const bool poison : {false, true}) {
        if (test_small() && (poison || target == head_leaves::logits)) continue;
        CAPTURE(static_cast<int>(target));
        CAPTURE(static_cast<int>(draft));
        CAPTURE(poison);
        const outcome got = run(in, prompts, length, {target, draft, 4, poison});
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          CHECK(got.texts[i].tokens == want.texts[i].tokens);
          CHECK(got.texts[i].end.status == want.texts[i].end.status);
          CHECK(got.texts[i].end.reason == want.texts[i].end.reason);
        }
        CHECK(got.done.by_accepted == want.done.by_accepted);
        CHECK(got.fault == want.fault);
      }
}

TEST_CASE("ranked heads: a draft's NaN is reported and ends no row; without one nothing is reported") {
  tables in;
  // every text comes by the token that the draft knows nothing of, at a place of its own among the rounds
  const std::vector<text> prompts{{0}, {1}, {2}, {3}, {4}, {5}};
  for (const bool nan : {true, false}) {
    if (!nan) in.draft[unsure * draft_vocab + 3] = 0;
    for (const head_leaves draft : {head_leaves::logits, head_leaves::ranked, head_leaves::ranked_feeds}) {
      CAPTURE(static_cast<int>(draft));
      const outcome got = run(in, prompts, 60, {head_leaves::ranked, draft});
      CHECK(got.fault == (nan ? static_cast<std::int32_t>(row_status::nan_logits) : 0));
      for (const heard& each : got.texts) CHECK(each.end.status == row_status::ok);
    }
  }
}

TEST_CASE("ranked heads: no node takes tokens where the draft's steps read the numbers") {
  const tables in;
  const auto nodes = [&](head_leaves draft) {
    return run(in, {}, 1, {head_leaves::ranked, draft}).draft_nodes;
  };
  const auto with_logits = nodes(head_leaves::logits), fed_plain = nodes(head_leaves::ranked),
             fed_ranked = nodes(head_leaves::ranked_feeds);
  REQUIRE(!with_logits.empty());
  for (std::size_t i = 0; i < with_logits.size(); ++i) {
    CHECK(with_logits[i] == fed_ranked[i] + 3);  // K 4: an argmax each of three steps
    CHECK(fed_plain[i] == fed_ranked[i] + 2);    // nobody is fed by the last
  }
}
