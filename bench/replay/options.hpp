#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/replay/replay_case.hpp"

namespace CLI {
class App;
}

namespace stepgraph::bench {

/// What the user asked for.
struct replay_options {
  std::vector<std::string> models{"SmolLM2-135M"}, steps{"decode"}, policies{"live"};
  std::vector<int> batches{1};
  std::vector<std::int64_t> lives{512}, widths{8192};
  std::vector<double> accept_weights;
  double accept_rate = -1;  // negative: not given
  int accept = -1;          // likewise; then half of the drafts
  int drafts = 3;
  bool ragged = false;
  int page_size = 16;
  std::string where = "auto", json, commit = "unknown";
  int batches_timed = 7, repetitions = 3;
  std::uint64_t seed = 1;
  bool list = false;
};

void add_options(CLI::App& app, replay_options& into);

/// Every case asked for, models outermost. Throws `invalid_argument` naming the option that cannot be.
std::vector<replay_case> cases_of(const replay_options& wanted);

}  // namespace stepgraph::bench
