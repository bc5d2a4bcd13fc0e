#pragma once

#include <functional>

#include "graphs/stream.hpp"

namespace stepgraph::detail {

/// For tests alone, null otherwise: enqueues work of theirs before the node of each step that reads the request
/// table last, so that what happens too early is seen. Asked when a step is captured or runs eagerly.
inline std::function<void(stream_ref at)> before_metadata;

}  // namespace stepgraph::detail
