#pragma once

#include <vector>

#include "runtime/step_executor.hpp"

namespace stepgraph::detail {

/// Refuses, by name, limits that cannot be, steps that do not fit together, and what is adopted unless it
/// fits the limits.
void check_executor(device where, const step_limits& limits, const kv_layout& layout,
                    const std::vector<step_definition>& steps, const executor_options& options);

}  // namespace stepgraph::detail
