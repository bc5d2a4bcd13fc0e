#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/speculative_loop.hpp"

namespace stepgraph {

/// What one run of a loop took.
struct loop_run {
  double seconds = 0;           // in all
  double first_token = 0;       // until the first token of any text
  std::size_t tokens = 0;       // emitted
  std::size_t after_first = 0;  // of those, the ones that rounds brought, not prompts

  double tokens_a_second() const {
    const double rounds = seconds - first_token;
    return rounds > 0 ? static_cast<double>(after_first) / rounds : 0.0;
  }
};

/// Prints to standard error what capturing came to.
void report_captures(const step_executor& executor, double seconds);

/// Prints to standard error what a run came to: tokens a second, drafts and how many of them were kept,
/// time by kind of step, live pages.
void report_run(const step_executor& executor, const speculation_statistics& did, const loop_run& run);

/// Prints to standard error the first fault, if there was one, and with `overruns` what was written past its end.
void report_faults(step_executor& executor, bool overruns);

/// Prints to standard error how a run with drafts compares with one without, of the same prompts, and at which
/// token the texts part that do.
void report_comparison(const loop_run& with, const loop_run& without,
                       const std::vector<std::optional<std::size_t>>& parts, bool sampled);

}  // namespace stepgraph
