#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/step/request_state.hpp"

namespace stepgraph {

/// Tells the host that a round has read the request table for the last time: the table's owner may overwrite it
/// while the round goes on. A node beside the others, after the last that reads the table.
struct read_fence_params {
  const staged_header* header = nullptr;
  std::int32_t part = 0;  // of the round; only the one that the header names as the last reader writes
  std::uint64_t* fence = nullptr;  // out, host-visible: the header's sequence number
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void read_fence(stream_ref at, const read_fence_params& params);

}  // namespace stepgraph
