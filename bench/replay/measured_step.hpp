#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bench/replay/replay_case.hpp"
#include "bench/replay/step_graph.hpp"
#include "graphs/memory_resource.hpp"
#include "runtime/step_executor.hpp"

namespace stepgraph::bench {

/// One kind of step of one case, captured at the case's width in the bucket that its rows fill, on an executor
/// with a request table and lengths of the benchmark's own: every launch advances the lengths as a real step does,
/// `rewind` puts them back.
class measured_step {
 public:
  /// `kind` is the step's: a round has several. `model` must outlive this.
  measured_step(stream_ref at, const replay_case& wanted, replay_step kind, const replay_model& model,
                std::uint64_t seed);

  /// Lengths such that they are the case's live length on average over `launches` launches from here.
  void rewind(int launches);

  /// The step as an embedder runs it: staging, copy, graph launch.
  void replay();

  /// The same nodes under the benchmark's own capture. Staging is that of the last `replay`.
  step_graph& graph() { return *graph_; }

  /// Bytes of input that a replay copies.
  std::size_t staging_bytes() const;
  int tokens() const { return tokens_; }
  std::int64_t step_bytes() const;
  const capture_report& capture() const { return executor_.captures().front(); }

  /// Throws `error` if the device has reported a fault: then what was timed is not what was meant.
  void expect_no_fault() const;

 private:
  step_executor make_executor(std::uint64_t seed);
  void body(const step_context& step) const;
  int tokens_of(int row) const;

  stream_ref at_;
  replay_case case_;
  replay_step kind_;
  const replay_model& model_;
  std::uint64_t seed_;
  int tokens_ = 0, bucket_tokens_ = 0;
  double advance_ = 1;  // tokens a row grows by in one launch, on average
  std::vector<std::int32_t> ids_;
  std::vector<step_row> rows_;
  buffer table_, seq_lens_, last_token_, lengths_, full_lengths_, accept_, topk_, index_cache_, index_keys_;
  step_environment around_;
  step_executor executor_;
  std::unique_ptr<step_graph> graph_;
};

}  // namespace stepgraph::bench
