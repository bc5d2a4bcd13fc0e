#include "bench/replay/step_graph.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "graphs/memory_resource.hpp"
#include "kernels/launch.cuh"

namespace stepgraph::bench {
namespace {

struct mark_params {
  unsigned long long* times;  // [kept_launches, marks]
  std::uint32_t* launches;    // counted by the last mark of a launch
  std::int32_t marks;
  std::int32_t index;
};

// grid: one thread
__global__ void clock_mark(const __grid_constant__ mark_params p) {
  wait_for_predecessor();
  const std::uint32_t launch = *p.launches;
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  p.times[(launch % step_graph::kept_launches) * p.marks + p.index] = now;
  if (p.index == p.marks - 1) *p.launches = launch + 1;
}

struct edge {
  cudaGraphNode_t from, to;
  cudaGraphEdgeData data;
};

std::string name_of(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  STEPGRAPH_CUDA_TRY(cudaGraphNodeGetType(node, &type));
  if (type != cudaGraphNodeTypeKernel) return "";
  cudaKernelNodeParams params{};
  const char* name = nullptr;
  // kernels of other modules (cuBLAS) have no name here
  if (cudaGraphKernelNodeGetParams(node, &params) == cudaSuccess &&
      cudaFuncGetName(&name, params.func) == cudaSuccess && name)
    return name;
  (void)cudaGetLastError();
  return "";
}

std::vector<edge> edges_of(cudaGraph_t graph) {
  std::size_t count = 0;
  STEPGRAPH_CUDA_TRY(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (count > 0) STEPGRAPH_CUDA_TRY(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count));
  std::vector<edge> edges;
  for (std::size_t i = 0; i < count; ++i) edges.push_back({from[i], to[i], data[i]});
  return edges;
}

/// Nodes so that every edge points forward.
std::vector<cudaGraphNode_t> in_order(cudaGraph_t graph, const std::vector<edge>& edges) {
  std::size_t count = 0;
  STEPGRAPH_CUDA_TRY(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count), order;
  STEPGRAPH_CUDA_TRY(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::map<cudaGraphNode_t, int> waits_for;
  std::multimap<cudaGraphNode_t, cudaGraphNode_t> next;
  for (const edge& each : edges) {
    ++waits_for[each.to];
    next.emplace(each.from, each.to);
  }
  for (const cudaGraphNode_t node : nodes)
    if (waits_for[node] == 0) order.push_back(node);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto [first, last] = next.equal_range(order[i]);
    for (auto it = first; it != last; ++it)
      if (--waits_for[it->second] == 0) order.push_back(it->second);
  }
  return order;
}

void connect(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to, const cudaGraphEdgeData& data) {
  STEPGRAPH_CUDA_TRY(cudaGraphAddDependencies(graph, &from, &to, &data, 1));
}

class cuda_step final : public step_graph {
 public:
  cuda_step(stream_ref at, const std::function<void()>& enqueue, bool replaced_metadata) : at_(at) {
    const auto native = static_cast<cudaStream_t>(at.native());
    STEPGRAPH_CUDA_TRY(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
    try {
      enqueue();
    } catch (...) {
      cudaGraph_t discarded = nullptr;
      (void)cudaStreamEndCapture(native, &discarded);
      if (discarded) (void)cudaGraphDestroy(discarded);
      (void)cudaGetLastError();
      throw;
    }
    STEPGRAPH_CUDA_TRY(cudaStreamEndCapture(native, &graph_));
    if (replaced_metadata) take_out([](const std::string& n) { return group_of(n) == node_group::metadata; });
    find_runs();
  }
  ~cuda_step() override {
    if (exec_) (void)cudaGraphExecDestroy(exec_);
    if (graph_) (void)cudaGraphDestroy(graph_);
  }

  int nodes() const override { return nodes_; }
  const std::vector<node_run>& runs() const override { return runs_; }

  double executable_bytes() const override {
    constexpr int copies = 64;
    std::vector<cudaGraphExec_t> made;
    const std::size_t before = at_.where().free_bytes();
    for (int i = 0; i < copies; ++i) {
      STEPGRAPH_CUDA_TRY(cudaGraphInstantiate(&made.emplace_back(), graph_, 0));
      STEPGRAPH_CUDA_TRY(cudaGraphUpload(made.back(), static_cast<cudaStream_t>(at_.native())));
    }
    at_.synchronize();
    const std::size_t after = at_.where().free_bytes();
    for (const cudaGraphExec_t each : made) STEPGRAPH_CUDA_TRY(cudaGraphExecDestroy(each));
    return before > after ? double(before - after) / copies : 0;
  }

  void instantiate(clock_marks marks) override {
    if (exec_) STEPGRAPH_CUDA_TRY(cudaGraphExecDestroy(std::exchange(exec_, nullptr)));
    cudaGraph_t marked = nullptr;
    STEPGRAPH_CUDA_TRY(cudaGraphClone(&marked, graph_));
    try {
      add_marks(marked, marks);
      STEPGRAPH_CUDA_TRY(cudaGraphInstantiate(&exec_, marked, 0));
    } catch (...) {
      (void)cudaGraphDestroy(marked);
      throw;
    }
    STEPGRAPH_CUDA_TRY(cudaGraphDestroy(marked));
    STEPGRAPH_CUDA_TRY(cudaGraphUpload(exec_, static_cast<cudaStream_t>(at_.native())));
    at_.synchronize();
  }

  void launch() override {
    STEPGRAPH_CUDA_TRY(cudaGraphLaunch(exec_, static_cast<cudaStream_t>(at_.native())));
  }

  std::vector<std::vector<double>> take_marks() override {
    std::uint32_t launches = 0;
    std::vector<unsigned long long> raw(std::size_t{kept_launches} * marks_);
    at_.copy(&launches, launches_, sizeof launches);
    at_.copy(raw.data(), times_.data(), raw.size() * sizeof raw[0]);
    at_.synchronize();
    std::vector<std::vector<double>> lines;
    const std::uint32_t kept = std::min<std::uint32_t>(launches - taken_, kept_launches);
    for (std::uint32_t i = launches - kept; i < launches; ++i) {
      const auto* const line = raw.data() + std::size_t{i % kept_launches} * marks_;
      lines.emplace_back();
      for (int m = 0; m < marks_; ++m)
        lines.back().push_back(1e-3 * double(static_cast<std::int64_t>(line[m] - raw[0])));
    }
    taken_ = launches;
    return lines;
  }

 private:
  /// Removes the first node whose name `fits`, joining what was before it to what comes after.
  template <class Fits>
  void take_out(Fits&& fits) {
    const std::vector<edge> edges = edges_of(graph_);
    for (const cudaGraphNode_t node : in_order(graph_, edges)) {
      if (!fits(name_of(node))) continue;
      for (const edge& before : edges)
        for (const edge& after : edges)
          if (before.to == node && after.from == node) connect(graph_, before.from, after.to, {});
      STEPGRAPH_CUDA_TRY(cudaGraphDestroyNode(node));
      return;
    }
  }

  /// Runs, and the one edge that leads from each to the next.
  void find_runs() {
    const std::vector<edge> edges = edges_of(graph_);
    const std::vector<cudaGraphNode_t> order = in_order(graph_, edges);
    nodes_ = static_cast<int>(order.size());
    std::map<cudaGraphNode_t, int> place;
    for (int i = 0; i < nodes_; ++i) place[order[i]] = i;
    std::vector<int> crossing(nodes_ + 1, 0), only(nodes_ + 1, -1);
    for (std::size_t e = 0; e < edges.size(); ++e)
      for (int i = place[edges[e].from] + 1; i <= place[edges[e].to]; ++i) ++crossing[i], only[i] = int(e);
    bool mixed = false;
    for (int i = 0; i < nodes_; ++i) {
      const std::string name = name_of(order[i]);
      // copies and fills belong to what they follow
      const node_group group =
          name.empty() && !runs_.empty() && is_memory(order[i]) ? runs_.back().group : group_of(name);
      const bool other = runs_.empty() || runs_.back().group != group || mixed;
      if (other && (i == 0 || crossing[i] == 1)) {
        if (i > 0) cuts_.push_back(edges[only[i]]);
        runs_.push_back({group, 0});
        mixed = false;
      } else if (other) {
        runs_.back().group = node_group::model;
        mixed = true;
      }
      ++runs_.back().nodes;
    }
  }

  static bool is_memory(cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    STEPGRAPH_CUDA_TRY(cudaGraphNodeGetType(node, &type));
    return type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset;
  }

  void add_marks(cudaGraph_t graph, clock_marks marks) {
    marks_ = 0;
    if (marks == clock_marks::none) return;
    const int twice = marks == clock_marks::groups_doubled ? 2 : 1;
    const bool inside = marks != clock_marks::ends;
    marks_ = twice * (2 + (inside ? static_cast<int>(cuts_.size()) : 0));
    times_ = buffer(device_memory(at_.where()), std::size_t{kept_launches} * marks_ * 8 + 8);
    launches_ = reinterpret_cast<std::uint32_t*>(times_.as<unsigned long long>() + kept_launches * marks_);
    at_.fill(times_.data(), 0, times_.bytes());
    taken_ = 0;

    const std::vector<edge> edges = edges_of(graph);
    const std::vector<cudaGraphNode_t> order = in_order(graph, edges);
    int index = 0;
    // a chain of `twice` marks after `before` (none: the first node)
    const auto add = [&](cudaGraphNode_t before, const cudaGraphEdgeData& data) {
      cudaGraphNode_t last = before;
      for (int i = 0; i < twice; ++i) {
        mark_params params{times_.as<unsigned long long>(), launches_, marks_, index++};
        void* arguments[] = {&params};
        cudaKernelNodeParams kernel{};
        kernel.func = reinterpret_cast<void*>(clock_mark);
        kernel.gridDim = dim3(1);
        kernel.blockDim = dim3(1);
        kernel.kernelParams = arguments;
        cudaGraphNode_t made = nullptr;
        STEPGRAPH_CUDA_TRY(cudaGraphAddKernelNode(&made, graph, nullptr, 0, &kernel));
        if (last) connect(graph, last, made, data);
        last = made;
      }
      return last;
    };
    std::vector<cudaGraphNode_t> first, end;
    for (const cudaGraphNode_t node : order) {
      if (std::ranges::none_of(edges, [&](const edge& e) { return e.to == node; })) first.push_back(node);
      if (std::ranges::none_of(edges, [&](const edge& e) { return e.from == node; })) end.push_back(node);
    }
    const cudaGraphNode_t head = add(nullptr, {});
    for (const cudaGraphNode_t node : first) connect(graph, head, node, {});
    if (inside)
      for (const edge& original : cuts_) {
        edge cut = original;
        STEPGRAPH_CUDA_TRY(cudaGraphNodeFindInClone(&cut.from, original.from, graph));
        STEPGRAPH_CUDA_TRY(cudaGraphNodeFindInClone(&cut.to, original.to, graph));
        STEPGRAPH_CUDA_TRY(cudaGraphRemoveDependencies(graph, &cut.from, &cut.to, &cut.data, 1));
        connect(graph, add(cut.from, cut.data), cut.to, cut.data);
      }
    STEPGRAPH_EXPECTS(end.size() == 1, "step_graph: ", end.size(), " branches are open at the step's end");
    add(end.front(), {});
  }

  stream_ref at_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  int nodes_ = 0;
  std::vector<node_run> runs_;
  std::vector<edge> cuts_;  // the one edge from each run to the next
  int marks_ = 0;
  buffer times_;
  std::uint32_t* launches_ = nullptr;
  std::uint32_t taken_ = 0;
};

}  // namespace

std::unique_ptr<step_graph> capture_cuda_step(stream_ref at, const std::function<void()>& enqueue,
                                              bool replaced_metadata) {
  return std::make_unique<cuda_step>(at, enqueue, replaced_metadata);
}

}  // namespace stepgraph::bench
