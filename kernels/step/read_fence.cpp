#include "kernels/step/read_fence.hpp"

#include "kernels/check_pointers.hpp"
#include "kernels/step/read_fence_op.hpp"

namespace stepgraph {

void read_fence(stream_ref at, const read_fence_params& p) {
  detail::check_pointers(read_fence_op::name, {{"header", p.header}, {"fence", p.fence}});
  launch_tiles(at, read_fence_op{p});
}

}  // namespace stepgraph
