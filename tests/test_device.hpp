#pragma once

#include <cstdint>
#include <random>

#include "graphs/device.hpp"

namespace stepgraph {

/// The device that this run of the tests is about.
device test_device();

/// True if STEPGRAPH_TEST_SMALL is set: the same cases, all kernels, but fewer and shorter, for tools that
/// slow a GPU down a thousandfold.
bool test_small();

/// The whole positive number that the environment's `name` holds, `otherwise` where it is not set. Throws
/// `std::invalid_argument` naming both for anything else.
std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise);

/// `full`, or a few if the tests are to be small.
inline int test_rounds(int full) {
  return test_small() && full > 3 ? 3 : full;
}

/// Seeds all random inputs of this run; printed, and set again by STEPGRAPH_TEST_SEED.
std::uint64_t test_seed();

}  // namespace stepgraph
