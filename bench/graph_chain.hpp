#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphs/graph.hpp"

/// Timing of kernels as engines run them: nodes of a graph that is replayed back to back.
namespace stepgraph::bench {

struct timing {
  double median = 0;  // microseconds a node
  double minimum = 0;
  double maximum = 0;
  int count = 0;  // measurements
};

struct chain_options {
  int nodes = 20;    // the same work in a row in one graph
  int replays = 10;  // back to back in one measurement
  int count = 21;    // measurements
};

/// Microseconds a node of a graph made of `options.nodes` times `enqueue(stream)`. Clocks are warm: as many
/// replays go before as are measured.
template <class Enqueue>
timing time_chain(stream_ref at, const Enqueue& enqueue, const chain_options& options = {}) {
  const graph_exec exec = capture(at, [&](stream_ref s) {
                            for (int i = 0; i < options.nodes; ++i) enqueue(s);
                          }).instantiate();
  for (int i = 0; i < options.replays; ++i) exec.launch(at);
  std::vector<double> each;
  event start(at.where(), event::timing::on), stop(at.where(), event::timing::on);
  for (int i = 0; i < options.count; ++i) {
    exec.launch(at);  // keeps the device busy while the host fills its queue
    start.record(at);
    for (int k = 0; k < options.replays; ++k) exec.launch(at);
    stop.record(at);
    stop.synchronize();
    each.push_back(1e3 * stop.milliseconds_since(start) / (options.replays * options.nodes));
  }
  std::sort(each.begin(), each.end());
  return {.median = each[each.size() / 2],
          .minimum = each.front(),
          .maximum = each.back(),
          .count = options.count};
}

}  // namespace stepgraph::bench
