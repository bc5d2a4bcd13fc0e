#pragma once

#include <array>
#include <map>
#include <vector>

#include "bench/graph_chain.hpp"
#include "bench/replay/measured_step.hpp"

namespace stepgraph::bench {

/// Samples of one quantity, microseconds. A sample is the mean over a batch of launches.
using samples = std::vector<double>;

timing summary(samples values);
double median(samples values);

/// What one step, or the steps of one round, came to.
struct replay_times {
  samples step;         // back to back, by events around a batch
  samples replayed;     // the same through `step_executor::replay`, its input copy included
  samples launch_call;  // host time of the graph launch, one after another
  samples replay_call;  // host time of `replay`, the same
  samples first_launch_call, first_replay_call;  // of the first after a pause
  samples gap;            // from one replay's last node to the next one's first, graph after graph
  samples gap_with_copy;  // the same with a replay's input copy in between
  samples device_hot;     // first node to last, the caches as the replay before left them
  samples device_cold;    // the same after the caches were swept
  std::map<node_group, samples> groups;
  std::vector<samples> parts;  // each graph's device time, hot
};

struct measure_options {
  int batches = 7;     // samples of one repetition
  bool detail = true;  // all of replay_times, else `step` alone
};

/// Measures `step`, appending to `into`. `swept` is what is overwritten to empty the caches.
void measure(stream_ref at, measured_step& step, const buffer& swept, const measure_options& how,
             replay_times& into);

/// Bytes a microsecond, read alone and copied (read and written), measured here and now.
struct bandwidths {
  double read = 0;
  double copy = 0;
};
bandwidths measure_bandwidths(stream_ref at);

/// Bytes to overwrite so that no cache of the device holds anything else.
std::size_t sweep_bytes(device where);

}  // namespace stepgraph::bench
