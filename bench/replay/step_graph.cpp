#include "bench/replay/step_graph.hpp"

#include <chrono>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "graphs/host_backend.hpp"

namespace stepgraph::bench {
namespace {

class host_step final : public step_graph {
 public:
  host_step(stream_ref at, const std::function<void()>& enqueue) {
    const capture_scope scope(at);  // never ended: the nodes are all that is wanted
    enqueue();
    for (const detail::host_node& node : detail::host_stream::of(at).recording->nodes) {
      nodes_.push_back(node);
      const node_group group = group_of(node.name);
      if (runs_.empty() || runs_.back().group != group) runs_.push_back({group, 0});
      ++runs_.back().nodes;
    }
  }

  int nodes() const override { return static_cast<int>(nodes_.size()); }
  const std::vector<node_run>& runs() const override { return runs_; }

  double executable_bytes() const override { return 0; }

  void instantiate(clock_marks marks) override {
    marks_ = marks;
    taken_.clear();
  }

  void launch() override {
    if (taken_.size() == kept_launches) taken_.erase(taken_.begin());
    std::vector<double> times;
    const auto mark = [&](bool at_end) {
      if (marks_ == clock_marks::none || (marks_ == clock_marks::ends && !at_end)) return;
      times.push_back(now());
      if (marks_ == clock_marks::groups_doubled) times.push_back(now());
    };
    std::size_t next = 0;
    mark(true);
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      for (int i = 0; i < runs_[r].nodes; ++i) nodes_[next++].run();
      mark(r + 1 == runs_.size());
    }
    if (marks_ != clock_marks::none) taken_.push_back(std::move(times));
  }

  std::vector<std::vector<double>> take_marks() override { return std::exchange(taken_, {}); }

 private:
  static double now() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::vector<detail::host_node> nodes_;
  std::vector<node_run> runs_;
  clock_marks marks_ = clock_marks::none;
  std::vector<std::vector<double>> taken_;
};

}  // namespace

std::unique_ptr<step_graph> capture_host_step(stream_ref at, const std::function<void()>& enqueue) {
  return std::make_unique<host_step>(at, enqueue);
}

std::unique_ptr<step_graph> step_graph::capture(stream_ref at, const std::function<void()>& enqueue,
                                                [[maybe_unused]] bool replaced_metadata) {
  if (at.is_host()) return capture_host_step(at, enqueue);
#if STEPGRAPH_CUDA
  return capture_cuda_step(at, enqueue, replaced_metadata);
#else
  throw cuda_error("step_graph: this stepgraph was built without CUDA", 0);
#endif
}

}  // namespace stepgraph::bench
