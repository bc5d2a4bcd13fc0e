#pragma once

#if STEPGRAPH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace stepgraph {

/// A named range on the profiler's time line, from construction to the end of scope. Nothing in a host-only
/// build.
class nvtx_range {
 public:
#if STEPGRAPH_CUDA
  explicit nvtx_range(const char* name) noexcept {
    nvtxRangePushA(name);
  }
  ~nvtx_range() {
    nvtxRangePop();
  }
#else
  explicit nvtx_range(const char*) noexcept {}
#endif
  nvtx_range(const nvtx_range&) = delete;
  nvtx_range& operator=(const nvtx_range&) = delete;
};

}  // namespace stepgraph
