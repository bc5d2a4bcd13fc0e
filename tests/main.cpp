// The main of every test program. The device that device tests run on comes from STEPGRAPH_TEST_DEVICE (host,
// cuda); where it is not there the program ends with 77, which Meson counts as skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/test_device.hpp"

namespace {

std::string_view wanted_device() {
  const char* const wanted = std::getenv("STEPGRAPH_TEST_DEVICE");
  return wanted ? wanted : "host";
}

}  // namespace

stepgraph::device stepgraph::test_device() {
  return wanted_device() == "cuda" ? device::cuda() : device::host();
}

std::uint64_t stepgraph::number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const given = std::getenv(name);
  if (!given) return otherwise;
  const std::string_view text(given);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == 0)
    throw std::invalid_argument(std::string(name) + " must be a positive number, got '" + given + "'");
  return number;
}

bool stepgraph::test_small() {
  return std::getenv("STEPGRAPH_TEST_SMALL") != nullptr;
}

std::uint64_t stepgraph::test_seed() {
  static const std::uint64_t seed = [] {
    const char* const given = std::getenv("STEPGRAPH_TEST_SEED");
    const std::uint64_t chosen = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("STEPGRAPH_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const bool absent = wanted_device() == "cuda" && stepgraph::device::cuda_count() == 0;
  for (int i = 1; absent && i < argc; ++i)
    if (std::string_view(argv[i]) == "--count" || std::string_view(argv[i]) == "-c") return context.run();
  if (absent) {
    std::puts("skipped: there is no CUDA device");
    return 77;
  }
  return context.run();
}
