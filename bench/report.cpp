#include "bench/report.hpp"

#if STEPGRAPH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <ctime>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>

namespace stepgraph::bench {
namespace {

[[maybe_unused]] std::string version(int number) {
  return std::to_string(number / 1000) + '.' + std::to_string(number % 1000 / 10);
}

/// The release of the driver's kernel module where the system tells, such as 580.159.04; else what it supports of CUDA.
[[maybe_unused]] std::string driver_version(int api) {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;)
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos)
      return word;
  return "for CUDA " + version(api);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

}  // namespace

report::report(device where, std::string commit) {
  all_["context"] = {{"gpu", where.name()},
                     {"driver", nullptr},
                     {"cuda", nullptr},
                     {"commit", std::move(commit)},
                     {"date", today()}};
#if STEPGRAPH_CUDA
  if (!where.is_host()) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    all_["context"]["driver"] = driver_version(driver);
    all_["context"]["cuda"] = version(runtime);
  }
#endif
  all_["rows"] = nlohmann::json::array();
}

void report::add(const std::string& name, const nlohmann::json& parameters, const timing& measured,
                 std::int64_t bytes, const std::string& peer, double peer_us) {
  nlohmann::json row = {{"name", name},
                        {"parameters", parameters},
                        {"median", measured.median},
                        {"minimum", measured.minimum},
                        {"maximum", measured.maximum},
                        {"count", measured.count},
                        {"bytes", bytes},
                        {"peer", nullptr},
                        {"peer_us", nullptr}};
  if (!peer.empty()) {
    row["peer"] = peer;
    row["peer_us"] = peer_us;
  }
  all_["rows"].push_back(std::move(row));
}

void report::write(const std::string& path) const {
  // a row a line: files that are committed stay small and compare well
  std::string text = "{\"context\": " + all_["context"].dump() + ",\n\"rows\": [\n";
  const auto& rows = all_["rows"];
  for (std::size_t i = 0; i < rows.size(); ++i) text += rows[i].dump() + (i + 1 < rows.size() ? ",\n" : "\n");
  text += "]}\n";
  if (path == "-") {
    std::cout << text;
    return;
  }
  std::ofstream out(path);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace stepgraph::bench
