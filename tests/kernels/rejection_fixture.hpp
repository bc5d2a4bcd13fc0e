#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/sample/target_distribution.hpp"
#include "kernels/speculate/rejection_accept.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/kernels/speculate_fixture.hpp"

namespace stepgraph {

/// One verify step with its logits and its drafts' q, host side.
struct rejection_case {
  verify_case step;
  bool tree = true;
  int vocab = 4;
  std::vector<float> logits;                // [step.tokens, vocab]
  std::vector<std::int32_t> position;       // [step.tokens]
  std::vector<sampling_settings> settings;  // [rows]
  std::vector<std::uint32_t> allowed;       // [step.tokens, words] or empty
  std::vector<std::int32_t> lines;          // [rows, max_nodes - 1] or empty
  std::vector<float> q;                     // [line_count, draft_vocab]
  int draft_vocab = 0, line_count = 0;
  std::vector<std::int32_t> draft_ids;  // [vocab] or empty
};

/// Both kernels of a sampled accept, over buffers that can be set anew for another step of the same buckets.
class rejection_run {
 public:
  /// Runs `in` once.
  rejection_run(stream_ref at, const rejection_case& in) : rejection_run(at, in, nullptr) {
    enqueue(at);
    at.synchronize();
  }

  /// Makes the buffers for `in` alone.
  rejection_run(stream_ref at, const rejection_case& in, std::nullptr_t)
      : result(at, in.step.rows, in.step.max_nodes),
        faults(at, in.step.rows),
        step_(at, in.step, in.tree),
        logits_(at, in.logits),
        q_(at, some(in.q)),
        logprobs_(at, static_cast<std::size_t>(in.step.rows) * in.step.max_nodes, 7.0f),
        unfiltered_(at, static_cast<std::size_t>(in.step.rows) * in.step.max_nodes, 7.0f),
        position_(at, in.position),
        row_of_(at, rows_of(in.step)),
        lines_(at, some(in.lines)),
        ids_(at, some(in.draft_ids)),
        settings_(at, in.settings),
        allowed_(at, some(in.allowed)),
        distributions_(at, in.step.tokens, row_distribution{}) {
    const sampling_view sampling{.settings = settings_.data(), .requests = {}, .count = in.step.rows};
    const allowed_view mask{.words = in.allowed.empty() ? nullptr : allowed_.data(),
                            .stride = (in.vocab + 31) / 32};
    target = {.logits = logits_.data(),
              .logits_stride = in.vocab,
              .tokens = in.step.tokens,
              .vocab_size = in.vocab,
              .live_tokens = step_.live_tokens(),
              .row_of = row_of_.data(),
              .sampling = sampling,
              .allowed = mask,
              .with_unfiltered = true,
              .distributions = distributions_.data()};
    accept = {.verify = step_.view,
              .position = position_.data(),
              .logits = logits_.data(),
              .logits_stride = in.vocab,
              .vocab_size = in.vocab,
              .distributions = distributions_.data(),
              .sampling = sampling,
              .allowed = mask,
              .with_unfiltered = true,
              .draft = {.lines = in.lines.empty() ? nullptr : lines_.data(),
                        .stride = in.step.max_nodes - 1,
                        .probabilities = q_.data(),
                        .probabilities_stride = in.draft_vocab,
                        .line_count = in.line_count,
                        .vocab_size = in.draft_vocab,
                        .draft_ids = in.draft_ids.empty() ? nullptr : ids_.data()},
              .result = result.view,
              .logprobs = logprobs_.data(),
              .unfiltered_logprobs = unfiltered_.data(),
              .faults = faults.sink()};
  }

  /// Another step of the same buckets, vocabulary and lines.
  void set(const rejection_case& in) {
    step_.set(in.step);
    logits_.set(in.logits);
    q_.set(some(in.q));
    position_.set(in.position);
    row_of_.set(rows_of(in.step));
    lines_.set(some(in.lines));
    settings_.set(in.settings);
  }

  void enqueue(stream_ref at) const {
    target_distribution(at, target);
    rejection_accept(at, accept);
  }

  device_result result;
  fault_fixture faults;
  target_distribution_params target;
  rejection_accept_params accept;
  std::vector<float> logprobs() const { return logprobs_.get(); }
  std::vector<float> unfiltered_logprobs() const { return unfiltered_.get(); }

 private:
  template <class Values>
  static Values some(Values values) {
    if (values.empty()) values.resize(1);
    return values;
  }
  static std::vector<std::int32_t> rows_of(const verify_case& step) {
    std::vector<std::int32_t> rows(step.tokens, 0);
    for (int row = 0; row < step.live; ++row)
      for (int node = 0; node < step.nodes(row); ++node) rows[step.cu[row] + node] = row;
    return rows;
  }

  device_verify step_;
  device_vector<float> logits_, q_, logprobs_, unfiltered_;
  device_vector<std::int32_t> position_, row_of_, lines_, ids_;
  device_vector<sampling_settings> settings_;
  device_vector<std::uint32_t> allowed_;
  device_vector<row_distribution> distributions_;
};

/// A q of a third zeros.
inline std::vector<float> random_q(reference::random_integers& random, int vocab) {
  std::vector<float> line;
  float total = 0;
  for (int v = 0; v < vocab; ++v) {
    line.push_back(random.one_in(3) ? 0.0f : static_cast<float>(random.between(1, 1000)));
    total += line.back();
  }
  if (total == 0) line[0] = total = 1;
  for (float& x : line) x /= total;
  return line;
}

inline std::int32_t line_before(const rejection_case& in, int row, int node) {
  return in.lines[static_cast<std::size_t>(row) * (in.step.max_nodes - 1) + node - 2];
}

/// Rows of all kinds: greedy and filtered, drafts sampled and chosen, siblings from one q, q that is none at
/// the drawn token. Dead rows and tokens are poisoned.
inline rejection_case random_rejection(std::uint64_t seed, int rows, int live, int max_nodes, int vocab,
                                       bool chain, bool reduced, bool masked = false) {
  reference::random_integers random(seed);
  rejection_case in;
  in.step = random_verify_case(random, rows, live, max_nodes, vocab, chain);
  in.tree = !chain;
  in.vocab = vocab;
  in.draft_vocab = reduced ? (vocab + 1) / 2 : vocab;
  in.logits.assign(static_cast<std::size_t>(in.step.tokens) * vocab, std::numeric_limits<float>::quiet_NaN());
  in.position.assign(in.step.tokens, wild);
  in.settings.assign(rows, {});
  in.lines.assign(static_cast<std::size_t>(rows) * (max_nodes - 1), wild);
  for (int v = 0; reduced && v < vocab; ++v) in.draft_ids.push_back(v % 2 == 0 ? v / 2 : -1);
  // token 0 is always allowed
  for (int i = 0; masked && i < in.step.tokens * ((vocab + 31) / 32); ++i)
    in.allowed.push_back(static_cast<std::uint32_t>(random.below(1ll << 32)) | 1u);
  for (int row = 0; row < live; ++row) {
    const float temperatures[] = {0.0f, 0.7f, 1.0f};
    in.settings[row] = {.temperature = temperatures[random.below(3)],
                        .top_k = random.one_in(3) ? static_cast<std::int32_t>(random.between(1, vocab)) : 0,
                        .top_p = random.one_in(3) ? 0.8f : 1.0f,
                        .min_p = random.one_in(4) ? 0.1f : 0.0f,
                        .seed = static_cast<std::uint64_t>(random.below(INT64_MAX)),
                        .request = static_cast<std::uint64_t>(random.below(INT64_MAX))};
    const auto depth = reference::depths(in.step.trees[row].parents);
    const auto base = static_cast<std::int32_t>(random.below(1000));
    for (int node = 0; node < in.step.nodes(row); ++node) {
      const int token = in.step.cu[row] + node;
      in.position[token] = base + static_cast<std::int32_t>(depth[node]);
      for (int v = 0; v < vocab; ++v)
        in.logits[static_cast<std::size_t>(token) * vocab + v] =
            static_cast<float>(random.between(-2000, 2000)) * 1e-3f;
      if (node == 0) continue;
      std::int32_t& line = in.lines[static_cast<std::size_t>(row) * (max_nodes - 1) + node - 1];
      if (random.one_in(3)) {
        line = random.one_in(2) ? -1 : 1000000;  // chosen; a line outside the table is none either
      } else if (node > 1 && in.step.trees[row].parents[node] == in.step.trees[row].parents[node - 1] &&
                 random.one_in(2) && line_before(in, row, node) >= 0 &&
                 line_before(in, row, node) < in.line_count) {
        line = line_before(in, row, node);  // a sibling from the same q
      } else {
        const auto q = random_q(random, in.draft_vocab);
        in.q.insert(in.q.end(), q.begin(), q.end());
        line = in.line_count++;
        const int id = static_cast<int>(in.step.trees[row].tokens[node]);
        const int mine = reduced ? in.draft_ids[id] : id;
        // what makes it a chosen one after all
        if (mine >= 0 && random.one_in(4))
          in.q[in.q.size() - in.draft_vocab + mine] =
              std::vector<float>{std::numeric_limits<float>::quiet_NaN(), -0.5f, 1.5f, 0.0f}[random.below(4)];
      }
    }
  }
  if (in.line_count == 0) {
    in.q.assign(in.draft_vocab, 1.0f);
    in.line_count = 1;
  }
  return in;
}

}  // namespace stepgraph
