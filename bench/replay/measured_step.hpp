#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bench/replay/replay_case.hpp"
#include "bench/replay/step_graph.hpp"
#include "graphs/memory_resource.hpp"
#include "runtime/step_executor.hpp"

namespace stepgraph::bench {

/// The graphs of one case: a lone step, or the steps of a round in their order. Captured at the case's width in the
/// bucket that its rows fill, on an executor with a request table and lengths of the benchmark's own: launches
/// advance the lengths as real steps do, `rewind` puts them back.
class measured_step {
 public:
  struct part {
    const char* name;  // of the step kind
    std::unique_ptr<step_graph> graph;
    capture_report capture;
  };

  /// `model` and `draft` (of rounds and draft-extend steps, else null) must outlive this.
  measured_step(stream_ref at, const replay_case& wanted, const replay_model& model,
                const replay_model* draft, std::uint64_t seed);
  measured_step(const measured_step&) = delete;
  measured_step& operator=(const measured_step&) = delete;

  /// Lengths such that they are the case's live length on average over `launches` launches from here.
  void rewind(int launches);

  /// The case as an embedder runs it: staging, copy, graph launches. A draft-extend step brings its round.
  void replay();
  bool replays_alone() const { return case_.step != replay_step::draft_extend; }

  /// The same nodes under the benchmark's own capture. Their inputs are those of the last `replay`.
  const std::vector<part>& parts() const { return parts_; }

  /// Bytes of input that a replay copies.
  std::size_t staging_bytes() const;
  std::int64_t step_bytes() const;
  /// Drafts kept a row in the last replay.
  double kept();

  /// Throws `error` if the device has reported a fault: then what was timed is not what was meant.
  void expect_no_fault() const;

 private:
  step_executor make_executor();
  std::vector<step_definition> definitions();
  void body(const step_context& step) const;
  step_kind target_kind() const;
  bool verifies() const { return case_.step != replay_step::decode; }

  stream_ref at_;
  replay_case case_;
  const replay_model& model_;
  const replay_model* draft_;
  std::uint64_t seed_;
  int tokens_ = 0, bucket_tokens_ = 0;
  double advance_ = 1;  // tokens a row grows by in one launch, on average
  std::vector<std::int32_t> ids_;
  std::vector<step_row> rows_;
  buffer table_, seq_lens_, last_token_, sampling_, lengths_, full_lengths_, accept_, topk_, index_cache_,
      index_keys_;
  step_environment around_;
  step_executor executor_;
  std::vector<part> parts_;
  step_ticket last_{};
};

}  // namespace stepgraph::bench
