#include "kernels/speculate/greedy_accept.hpp"

#include "kernels/speculate/check_accept.hpp"
#include "kernels/speculate/greedy_accept_op.hpp"

namespace stepgraph {

void check(const greedy_accept_params& p) {
  constexpr const char* op = greedy_accept_op::name;
  detail::check_verify(op, p.verify);
  detail::check_pointers(op, {{"verify.token_ids", p.verify.token_ids}, {"argmax", p.argmax}});
  detail::check_result(op, p.result, p.verify.max_query_count);
}

void greedy_accept(stream_ref at, const greedy_accept_params& params) {
  check(params);
  launch_tiles(at, greedy_accept_op{params});
}

}  // namespace stepgraph
