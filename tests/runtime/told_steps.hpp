#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/choose_tokens.hpp"
#include "runtime/step_executor.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/reference/speculation.hpp"
#include "tests/test_device.hpp"

namespace stepgraph {

/// Steps on any backend whose logits and masks the test has told them: a function of the text before, so that whoever
/// knows the text knows what a step must come to. Every body hands the same device memory to `choose_tokens`.
class told_steps {
 public:
  using text = std::vector<std::int32_t>;
  static constexpr float unwritten = 7.0f;
  static constexpr int greedy = 0, sampled = 1, trees = 2;  // variant: their sum
  static constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

  struct options {
    int rows = 4;
    int drafts = 4;
    int vocab = 37;
    bool masked = true;
    bool logprobs = true;
    bool poison = false;
  };

  /// A row of a step: what it has said, and in a verify step its drafts behind node 0.
  struct row {
    request_id request;
    text* history;                 // its last token is not in the cache yet
    reference::draft_tree tree{};  // empty: it sits the step out
  };

  /// What came of a step.
  struct outcome {
    std::vector<row_result> results;
    std::vector<text> emitted;
    std::vector<float> logprobs, unfiltered;  // [rows, stride]
    int stride;
  };

  explicit told_steps(const options& how)
      : how_(how),
        at_(test_device()),
        tokens_(how.rows * (how.drafts + 1) + 3),
        logits_(at_.ref(), std::size_t(tokens_) * how.vocab, nan_value),
        words_(at_.ref(), std::size_t(tokens_) * word_count(), 0u),
        logprobs_(at_.ref(), std::size_t(how.rows) * (how.drafts + 1), unwritten),
        unfiltered_(at_.ref(), std::size_t(how.rows) * (how.drafts + 1), unwritten),
        executor(test_device(), limits(), layout, steps(), executor_options_of()) {}

  std::vector<float> logits_after(const text& history) const {
    reference::random_integers random(hash(history));
    std::vector<float> line(how_.vocab);
    for (float& logit : line) logit = static_cast<float>(random.between(-3000, 3000)) * 1e-3f;
    return line;
  }

  /// The token that would come without a mask is often one that may not come; sometimes there is but one.
  std::vector<bool> allowed_after(const text& history) const {
    if (!how_.masked) return {};
    if (std::ranges::equal(history, nothing_after)) return std::vector<bool>(how_.vocab, false);
    reference::random_integers random(hash(history) + 1);
    const std::vector<float> line = logits_after(history);
    std::vector<bool> allowed(how_.vocab);
    const int rare = random.one_in(6) ? 1000000 : 3;
    for (int id = 0; id < how_.vocab; ++id) allowed[id] = random.one_in(rare);
    if (random.one_in(2)) allowed[std::ranges::max_element(line) - line.begin()] = false;
    allowed[random.below(how_.vocab)] = true;
    return allowed;
  }

  /// What plain greedy decoding says after `history`, by a plain loop; nothing where nothing is allowed.
  std::optional<std::int64_t> best_after(const text& history) const {
    const auto line = logits_after(history);
    const auto allowed = allowed_after(history);
    std::optional<std::int64_t> best;
    for (int id = 0; id < how_.vocab; ++id)
      if ((allowed.empty() || allowed[id]) && (!best || line[id] > line[*best])) best = id;
    return best;
  }

  /// `history` and the drafts from the root's child to `node`.
  static text after_node(const row& of, std::int64_t node) {
    text path;
    for (; node > 0; node = of.tree.parents[node])
      path.push_back(static_cast<std::int32_t>(of.tree.tokens[node]));
    text all = *of.history;
    all.insert(all.end(), path.rbegin(), path.rend());
    return all;
  }

  /// Runs a step of `rows`; of an extend step a row's tokens are all of its history.
  outcome run(step_kind kind, int variant, const std::vector<row>& rows, bool eager = false) {
    const bool verify = kind == step_kind::target_verify;
    std::vector<float> logits(std::size_t(tokens_) * how_.vocab, nan_value);
    std::vector<std::uint32_t> words(std::size_t(tokens_) * word_count(), 0);
    std::vector<step_row> staged;
    std::vector<text> drafts(rows.size()), parents(rows.size());
    int line = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto nodes = static_cast<int>(rows[r].tree.tokens.size());
      if (!verify) line = static_cast<int>(r);
      for (int node = 0; node < nodes; ++node, ++line) tell(after_node(rows[r], node), line, logits, words);
      for (int node = 0; node < nodes; ++node) {
        parents[r].push_back(static_cast<std::int32_t>(rows[r].tree.parents[node]));
        if (node > 0) drafts[r].push_back(static_cast<std::int32_t>(rows[r].tree.tokens[node]));
      }
      step_row one{.request = rows[r].request, .tokens = nodes};
      if (verify) one.token_ids = drafts[r];
      if (verify && (variant & trees) && nodes > 0) one.parents = parents[r];
      if (kind == step_kind::extend && nodes > 0) {
        one.tokens = static_cast<std::int32_t>(rows[r].history->size());
        one.token_ids = *rows[r].history;
      }
      staged.push_back(one);
    }
    logits_.set(logits);
    words_.set(words);
    logprobs_.set(std::vector<float>(logprobs_.size(), unwritten));
    unfiltered_.set(std::vector<float>(unfiltered_.size(), unwritten));
    const step_ticket ticket =
        eager ? executor.run_eager(kind, staged, variant) : *executor.replay(kind, staged, variant);
    outcome out{.results = {},
                .emitted = {},
                .logprobs = {},
                .unfiltered = {},
                .stride = verify ? how_.drafts + 1 : 1};
    const auto results = executor.wait(ticket);
    out.results.assign(results.begin(), results.end());
    for (int r = 0; r < static_cast<int>(rows.size()); ++r) {
      const auto tokens = executor.emitted(ticket, r);
      out.emitted.emplace_back(tokens.begin(), tokens.end());
    }
    out.logprobs = logprobs_.get();
    out.unfiltered = unfiltered_.get();
    return out;
  }

  text nothing_after{};  // after this text no token is allowed

 private:
  static constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

  int word_count() const { return (how_.vocab + 31) / 32; }

  static std::uint64_t hash(const text& history) {
    std::uint64_t mixed = test_seed() + 1469598103934665603u;
    for (const std::int32_t token : history)
      mixed = (mixed ^ static_cast<std::uint64_t>(token + 1)) * 1099511628211u;
    return mixed;
  }

  void tell(const text& history, int line, std::vector<float>& logits,
            std::vector<std::uint32_t>& words) const {
    std::ranges::copy(logits_after(history), logits.begin() + std::ptrdiff_t{line} * how_.vocab);
    const auto allowed = allowed_after(history);
    for (std::size_t id = 0; id < allowed.size(); ++id)
      words[std::size_t(line) * word_count() + id / 32] |= std::uint32_t{allowed[id]} << (id % 32);
  }

  step_limits limits() const {
    return {.max_rows = how_.rows,
            .max_step_tokens = tokens_,
            .max_draft_tokens = how_.drafts,
            .max_requests = how_.rows,
            .max_context = 256,
            .page_size = 4,
            .vocab_size = how_.vocab};
  }

  executor_options executor_options_of() const {
    return {.row_buckets = bucket_policy::exactly({how_.rows}),
            .token_buckets = bucket_policy::exactly({tokens_}),
            .poison = how_.poison};
  }

  std::vector<step_definition> steps() {
    const step_body body = [this](const step_context& step) { choose_tokens(step, head()); };
    std::vector<step_definition> all;
    for (const bool draws : {false, true}) {
      const int variant = draws ? sampled : greedy;
      for (const step_kind kind : {step_kind::decode, step_kind::extend, step_kind::target_verify})
        all.push_back({.kind = kind, .variant = variant, .body = body, .sampled = draws});
      all.push_back({.kind = step_kind::target_verify,
                     .variant = variant + trees,
                     .body = body,
                     .sampled = draws,
                     .tree = true});
    }
    return all;
  }

 public:
  /// What every body hands over.
  head_logits head() const {
    return {.data = logits_.data(),
            .stride = how_.vocab,
            .vocab_size = how_.vocab,
            .allowed = {.words = how_.masked ? words_.data() : nullptr, .stride = word_count()},
            .logprobs = how_.logprobs ? logprobs_.data() : nullptr,
            .unfiltered_logprobs = how_.logprobs ? unfiltered_.data() : nullptr};
  }

 private:
  options how_;
  stream at_;
  int tokens_;
  device_vector<float> logits_;
  device_vector<std::uint32_t> words_;
  device_vector<float> logprobs_, unfiltered_;

 public:
  step_executor executor;
};

}  // namespace stepgraph
