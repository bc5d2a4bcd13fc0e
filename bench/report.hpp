#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/graph_chain.hpp"
#include "graphs/device.hpp"

/// The one JSON form of all of the project's measurements, which docs/benchmarks.md is generated from:
///
///   context: gpu, driver, cuda, commit, date, and what a tool adds
///   rows:    name, parameters {}, median, minimum, maximum, count, bytes, peer, peer_us, and samples [] where the
///            tool kept them
///
/// Times are microseconds; `bytes` is what the definition must move, 0 where that says nothing; `peer` names
/// what ran beside it on the same inputs in the same run, `peer_us` is its median; null where there was none.
namespace stepgraph::bench {

class report {
 public:
  /// `commit` is what was built, as the caller knows it.
  report(device where, std::string commit);

  void add(const std::string& name, const nlohmann::json& parameters, const timing& measured,
           std::int64_t bytes = 0, const std::string& peer = {}, double peer_us = 0);

  /// Adds to the context, or to the row added last.
  void note(const std::string& key, nlohmann::json value) { all_["context"][key] = std::move(value); }
  void note_row(const std::string& key, nlohmann::json value) { all_["rows"].back()[key] = std::move(value); }

  /// Writes the file, or to standard output for "-". Throws std::runtime_error where that fails.
  void write(const std::string& path) const;

 private:
  nlohmann::json all_;
};

}  // namespace stepgraph::bench
