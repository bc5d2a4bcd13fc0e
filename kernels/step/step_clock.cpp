#include "kernels/step/step_clock.hpp"

#include "graphs/error.hpp"
#include "kernels/step/step_clock_op.hpp"

namespace stepgraph {

void step_clock(stream_ref at, const step_clock_params& p) {
  constexpr const char* op = step_clock_op::name;
  STEPGRAPH_EXPECTS(p.header && p.times, op, ": a pointer is null");
  STEPGRAPH_EXPECTS(p.slots > 0 && p.mark >= 0 && p.mark < p.marks, op, ": mark ", p.mark, " of ", p.marks,
                    " in ", p.slots, " slots");
  launch_tiles(at, step_clock_op{p});
}

}  // namespace stepgraph
