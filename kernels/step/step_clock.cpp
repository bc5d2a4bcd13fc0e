#include "kernels/step/step_clock.hpp"

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/step/step_clock_op.hpp"

namespace stepgraph {

void step_clock(stream_ref at, const step_clock_params& p) {
  constexpr const char* op = step_clock_op::name;
  detail::check_pointers(op, {{"header", p.header}, {"times", p.times}});
  STEPGRAPH_EXPECTS(p.slots > 0 && p.mark >= 0 && p.mark < p.marks, op, ": mark ", p.mark, " of ", p.marks,
                    " in ", p.slots, " slots");
  launch_tiles(at, step_clock_op{p});
}

}  // namespace stepgraph
