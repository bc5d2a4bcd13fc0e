#include "kernels/sample/take_argmax.hpp"

#include "graphs/error.hpp"
#include "kernels/sample/take_argmax_op.hpp"

namespace stepgraph {

void take_argmax(stream_ref at, const take_argmax_params& p) {
  constexpr const char* op = take_argmax_op::name;
  STEPGRAPH_EXPECTS(p.ranked && p.live_rows && p.next_token, op, ": a required pointer is null");
  STEPGRAPH_EXPECTS(p.rows > 0, op, ": rows must be positive, got ", p.rows);
  launch_tiles(at, take_argmax_op{p});
}

}  // namespace stepgraph
