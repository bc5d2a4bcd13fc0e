#pragma once

#include <cstdint>
#include <random>

#include "graphs/device.hpp"

namespace stepgraph {

/// The device that this run of the tests is about.
device test_device();

/// Seeds all random inputs of this run; printed, and set again by STEPGRAPH_TEST_SEED.
std::uint64_t test_seed();

}  // namespace stepgraph
