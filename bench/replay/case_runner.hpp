#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/replay/measure.hpp"
#include "bench/report.hpp"

namespace stepgraph::bench {

struct runner_options {
  int batches = 7;
  std::uint64_t seed = 1;
};

/// Runs cases one after the other; keeps the model of the last one, for the next may have the same.
class case_runner {
 public:
  /// `width` is the widest that any case has.
  case_runner(stream_ref at, std::int64_t width, const runner_options& options, report& into);
  ~case_runner();

  /// Captures what the case needs.
  void begin(const replay_case& next);
  /// One repetition; returns the samples of the step (or round), microseconds.
  samples repeat();
  /// Writes the case's rows and prints its lines.
  void end();

 private:
  struct running;
  void print(const char* what, const timing& t, const std::string& note = {}) const;
  double noise(const samples& values) const;
  void add(const char* name, const samples& values, std::int64_t bytes = 0, const std::string& peer = {},
           double peer_us = 0);
  void add_capture();
  void add_accounting();
  void add_break_even();

  stream_ref at_;
  std::int64_t width_;
  runner_options options_;
  report& report_;
  bandwidths bandwidth_;
  std::string place_;  // said in every line
  buffer swept_;
  std::string model_name_;
  std::unique_ptr<replay_model> model_, draft_;
  std::unique_ptr<running> now_;
};

/// The rate at which each draft is kept that keeps `drafts_kept` of `drafts` on average; over 1 if none does.
double rate_for(double drafts_kept, int drafts);

}  // namespace stepgraph::bench
