#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/step/request_state.hpp"

namespace stepgraph {

/// Writes the device's clock to host-visible memory, as a node beside others.
struct step_clock_params {
  const staged_header* header = nullptr;
  std::int64_t* times = nullptr;  // out [slots, marks] nanoseconds, host-visible
  std::int32_t slots = 0;         // of the result ring
  std::int32_t marks = 0;         // numbers a slot
  std::int32_t mark = 0;          // which of them
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void step_clock(stream_ref at, const step_clock_params& params);

}  // namespace stepgraph
