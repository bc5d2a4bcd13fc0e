#pragma once

namespace stepgraph {

/// Different kernels that this process has launched under an op's name: how a test sees that lengths,
/// batches, widths and strides are run-time numbers. On the host backend, the functions that stood for them.
int kernels_launched(const char* op) noexcept;

namespace detail {
/// Notes that `function` ran for `op`. Thread-safe; neither allocates nor blocks.
void note_kernel(const char* op, const void* function) noexcept;
}  // namespace detail

}  // namespace stepgraph
