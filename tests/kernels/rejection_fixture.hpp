#pragma once

#include <cstdint>
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

/// Runs both kernels of a sampled accept.
class rejection_run {
 public:
  rejection_run(stream_ref at, const rejection_case& in)
      : result(at, in.step.rows, in.step.max_nodes),
        faults(in.step.rows),
        logprobs_(at, static_cast<std::size_t>(in.step.rows) * in.step.max_nodes, 7.0f),
        unfiltered_(at, static_cast<std::size_t>(in.step.rows) * in.step.max_nodes, 7.0f) {
    const device_verify step(at, in.step, in.tree);
    std::vector<std::int32_t> rows(in.step.tokens, 0);
    for (int row = 0; row < in.step.live; ++row)
      for (int node = 0; node < in.step.nodes(row); ++node) rows[in.step.cu[row] + node] = row;
    const auto some = [](auto values) {
      if (values.empty()) values.resize(1);
      return values;
    };
    const device_vector<float> logits(at, in.logits), q(at, some(in.q));
    const device_vector<std::int32_t> position(at, in.position), row_of(at, rows), lines(at, some(in.lines)),
        ids(at, some(in.draft_ids));
    const device_vector<sampling_settings> settings(at, in.settings);
    const device_vector<std::uint32_t> allowed(at, some(in.allowed));
    const device_vector<row_distribution> distributions(at, in.step.tokens, row_distribution{});
    const sampling_view sampling{.settings = settings.data(), .requests = {}, .count = in.step.rows};
    const allowed_view mask{.words = in.allowed.empty() ? nullptr : allowed.data(),
                            .stride = (in.vocab + 31) / 32};
    target_distribution(at, {.logits = logits.data(),
                             .logits_stride = in.vocab,
                             .tokens = in.step.tokens,
                             .vocab_size = in.vocab,
                             .live_tokens = step.live_tokens(),
                             .row_of = row_of.data(),
                             .sampling = sampling,
                             .allowed = mask,
                             .with_unfiltered = true,
                             .distributions = distributions.data()});
    rejection_accept(at, {.verify = step.view,
                          .position = position.data(),
                          .logits = logits.data(),
                          .logits_stride = in.vocab,
                          .vocab_size = in.vocab,
                          .distributions = distributions.data(),
                          .sampling = sampling,
                          .allowed = mask,
                          .draft = {.lines = in.lines.empty() ? nullptr : lines.data(),
                                    .stride = in.step.max_nodes - 1,
                                    .probabilities = q.data(),
                                    .probabilities_stride = in.draft_vocab,
                                    .line_count = in.line_count,
                                    .vocab_size = in.draft_vocab,
                                    .draft_ids = in.draft_ids.empty() ? nullptr : ids.data()},
                          .result = result.view,
                          .logprobs = logprobs_.data(),
                          .unfiltered_logprobs = unfiltered_.data(),
                          .faults = faults.sink()});
    at.synchronize();
  }

  device_result result;
  fault_fixture faults;
  std::vector<float> logprobs() const { return logprobs_.get(); }
  std::vector<float> unfiltered_logprobs() const { return unfiltered_.get(); }

 private:
  device_vector<float> logprobs_, unfiltered_;
};

}  // namespace stepgraph
