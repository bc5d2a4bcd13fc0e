#pragma once

#include <cstdint>
#include <vector>

#include "kernels/guard.hpp"
#include "tests/device_vector.hpp"

namespace stepgraph {

/// A place where ops of one stream report, read back after them.
class fault_fixture {
 public:
  fault_fixture(stream_ref at, int rows)
      : at_(at),
        status_(at_, rows, 0),
        taken_(at_, 1, 0),
        record_(pinned_memory(at.where()), sizeof(fault_record)) {
    *record_.as<fault_record>() = {};
  }
  fault_sink sink() const { return {record_.as<fault_record>(), taken_.data(), status_.data()}; }
  const std::int32_t* row_status_data() const { return status_.data(); }
  std::vector<row_status> statuses() const {
    std::vector<row_status> out;
    for (const std::int32_t status : status_.get()) out.push_back(static_cast<row_status>(status));
    return out;
  }
  fault_record record() const {
    at_.synchronize();
    return *record_.as<fault_record>();
  }

 private:
  stream_ref at_;
  device_vector<std::int32_t> status_, taken_;
  buffer record_;
};

}  // namespace stepgraph
