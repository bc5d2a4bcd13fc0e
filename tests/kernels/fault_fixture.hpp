#pragma once

#include <cstdint>
#include <vector>

#include "kernels/guard.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

namespace stepgraph {

/// A place where an op reports, read back after it.
class fault_fixture {
 public:
  explicit fault_fixture(int rows)
      : at_(test_device()),
        status_(at_, rows, 0),
        taken_(at_, 1, 0),
        record_(pinned_memory(test_device()), sizeof(fault_record)) {
    *record_.as<fault_record>() = {};
  }
  fault_sink sink() const { return {record_.as<fault_record>(), taken_.data(), status_.data()}; }
  const std::int32_t* row_status_data() const { return status_.data(); }
  std::vector<row_status> statuses() const {
    std::vector<row_status> out;
    for (const std::int32_t status : status_.get()) out.push_back(static_cast<row_status>(status));
    return out;
  }
  fault_record record() const { return *record_.as<fault_record>(); }

 private:
  stream at_;
  device_vector<std::int32_t> status_, taken_;
  buffer record_;
};

}  // namespace stepgraph
