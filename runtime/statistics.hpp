#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/step_context.hpp"

namespace stepgraph {

/// What capturing one key came to.
struct capture_report {
  step_key key;
  double milliseconds = 0;  // capture and instantiation, without the eager warm-up
  std::size_t nodes = 0;
  std::size_t device_bytes = 0;        // taken by the driver for the executable
  std::size_t programmatic_edges = 0;  // over which a kernel may start before the last one has ended
};

/// What one captured key has done.
struct bucket_statistics {
  step_key key;
  std::uint64_t replays = 0;
  std::uint64_t live_rows = 0;  // sums over the replays
  std::uint64_t live_tokens = 0;
  std::uint64_t live_pages = 0;  // pages of the rows' lengths, as far as the host knows them
  std::uint64_t captured_pages =
      0;  // rows of the bucket times page columns: what capture at full width would touch
};

/// Device times of one thing that happened again and again, in microseconds.
struct time_statistics {
  std::uint64_t count = 0;
  double sum = 0;
  double smallest = 0;
  double largest = 0;
  std::uint64_t over_5us = 0;

  void add(double microseconds) {
    smallest = count == 0 || microseconds < smallest ? microseconds : smallest;
    largest = microseconds > largest ? microseconds : largest;
    over_5us += microseconds > 5 ? 1 : 0;
    sum += microseconds;
    ++count;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0.0; }
};

/// Gaps of the device between two steps, and which of them may be the host's: those of a round whose last launch
/// returned after the round before had ended.
struct gap_statistics : time_statistics {
  static constexpr int bins = 256, bins_a_us = 16;
  std::uint64_t host_late = 0;
  std::uint64_t host_late_over_5us = 0;
  std::array<std::uint32_t, bins + 1> histogram{};  // by length, what is longer in the last

  void add(double microseconds, bool late) {
    time_statistics::add(microseconds);
    host_late += late ? 1 : 0;
    host_late_over_5us += late && microseconds > 5 ? 1 : 0;
    ++histogram[static_cast<std::size_t>(std::clamp(microseconds * bins_a_us, 0.0, double(bins)))];
  }

  /// The length that `share` of the gaps do not pass, rounded up to a bin.
  double percentile(double share) const {
    std::uint64_t below = 0;
    for (std::size_t bin = 0; bin < bins; ++bin)
      if ((below += histogram[bin]) >= share * static_cast<double>(count))
        return std::min(static_cast<double>(bin + 1) / bins_a_us, largest);
    return largest;
  }
};

/// Where the time of the steps of one kind goes. `clock` is what reading the clock twice in a row takes: it is in
/// every node's time.
struct node_time {
  const char* name;
  time_statistics time;
};

/// What `executor_options::timing` measures, by the device's own clock.
struct step_times {
  static constexpr int kinds = 5;
  time_statistics by_kind[kinds];       // index is the step_kind
  std::vector<node_time> nodes[kinds];  // likewise; of step_timing::nodes
  gap_statistics between_steps;         // gaps within a round
  gap_statistics between_rounds;        // gaps from one round to the next, the copy of its inputs included
  std::int64_t last_end = 0;            // nanoseconds of the device's clock
};

struct executor_statistics {
  std::vector<bucket_statistics> buckets;
  step_times times;
  std::uint64_t eager_steps =
      0;  // calls of `run_eager`: a round with the draft's steps around it counts once
  /// Replays that launched nothing, asked not to wait: all staging was in flight, or the pages they needed were free
  /// only once a step in flight was done.
  std::uint64_t would_block = 0;

  bucket_statistics total() const {
    bucket_statistics sum;
    for (const bucket_statistics& each : buckets) {
      sum.replays += each.replays;
      sum.live_rows += each.live_rows;
      sum.live_tokens += each.live_tokens;
      sum.live_pages += each.live_pages;
      sum.captured_pages += each.captured_pages;
    }
    return sum;
  }
};

}  // namespace stepgraph
