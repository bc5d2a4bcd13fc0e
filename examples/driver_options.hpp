#pragma once

// The options of driver_loop.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/sample/sampling_settings.hpp"
#include "runtime/step_context.hpp"

namespace stepgraph {

/// What the command line of `driver_loop` asks for.
struct driver_options {
  std::string model;
  std::vector<std::string> prompts;
  std::string system;
  std::string where = "auto";
  int max_tokens = 256;
  std::int64_t context = 2048;
  int page_size = 16;
  int step_tokens = 32;
  bool eager = false;
  bool poison = false;
  bool one_bucket = false;
  bool no_programmatic = false;
  std::string dot;
  step_kind dot_step = step_kind::decode;
  int lookup = 0;
  int branches = 1;
  std::string draft;
  int draft_length = 4;
  bool adaptive = false;
  bool wait = false;
  bool no_times = false;
  sampling_settings sampling{};

  bool drafts() const { return lookup > 0 || !draft.empty(); }
  int most_drafts() const { return lookup > 0 ? lookup : draft.empty() ? 0 : draft_length; }
};

/// Adds every option to `app`; parsing it fills `wanted`, which must outlive it.
void add_options(CLI::App& app, driver_options& wanted);

}  // namespace stepgraph
