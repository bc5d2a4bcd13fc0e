#include "kernels/sample/take_argmax.hpp"

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/sample/take_argmax_op.hpp"

namespace stepgraph {

void take_argmax(stream_ref at, const take_argmax_params& p) {
  constexpr const char* op = take_argmax_op::name;
  detail::check_pointers(op,
                         {{"ranked", p.ranked}, {"live_rows", p.live_rows}, {"next_token", p.next_token}});
  STEPGRAPH_EXPECTS(p.rows > 0, op, ": rows must be positive, got ", p.rows);
  launch_tiles(at, take_argmax_op{p});
}

}  // namespace stepgraph
