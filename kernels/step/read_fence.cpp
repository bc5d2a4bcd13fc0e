#include "kernels/step/read_fence.hpp"

#include "graphs/error.hpp"
#include "kernels/step/read_fence_op.hpp"

namespace stepgraph {

void read_fence(stream_ref at, const read_fence_params& p) {
  STEPGRAPH_EXPECTS(p.header && p.fence, read_fence_op::name, ": a pointer is null");
  launch_tiles(at, read_fence_op{p});
}

}  // namespace stepgraph
