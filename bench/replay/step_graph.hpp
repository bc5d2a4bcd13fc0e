#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/replay/node_groups.hpp"
#include "graphs/stream.hpp"

namespace stepgraph::bench {

/// Where an executable reads the clock. A mark is a node of its own that notes the time and no more.
enum class clock_marks {
  none,
  ends,           // before the first node and after the last
  groups,         // there, and wherever the next node is of another group
  groups_doubled  // two in a row at each of those places: what a mark itself costs
};

/// A run of neighbouring nodes of one group.
struct node_run {
  node_group group;
  int nodes;
};

/// The nodes of one step, captured by the benchmark itself so that it can time their groups. On a GPU marks are
/// kernels that store %globaltimer, put between nodes with the kind of edge that was there; on the host they are
/// readings of the steady clock.
class step_graph {
 public:
  /// Captures what `enqueue` puts on `at`. With `replaced_metadata` the step's own metadata node, the first of
  /// that group, is taken out: another policy's stands in its place.
  static std::unique_ptr<step_graph> capture(stream_ref at, const std::function<void()>& enqueue,
                                             bool replaced_metadata);
  virtual ~step_graph() = default;

  virtual int nodes() const = 0;
  /// In order; what lies on branches is one run of the model's.
  virtual const std::vector<node_run>& runs() const = 0;

  /// Device memory that the driver takes for one executable: the mean of several, since it takes memory in large
  /// pieces. 0 on the host.
  virtual double executable_bytes() const = 0;

  /// Makes the executable that `launch` runs from now on.
  virtual void instantiate(clock_marks marks) = 0;
  /// Enqueues one run. Neither allocates nor synchronises.
  virtual void launch() = 0;

  /// Microseconds of every mark of the launches since the last call, a line a launch, the oldest first; at most
  /// the last `kept_launches`. Waits for them.
  virtual std::vector<std::vector<double>> take_marks() = 0;
  static constexpr int kept_launches = 64;
};

/// Implementations; `capture` picks one.
std::unique_ptr<step_graph> capture_host_step(stream_ref at, const std::function<void()>& enqueue);
std::unique_ptr<step_graph> capture_cuda_step(stream_ref at, const std::function<void()>& enqueue,
                                              bool replaced_metadata);

}  // namespace stepgraph::bench
