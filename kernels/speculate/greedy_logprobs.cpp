#include "kernels/speculate/greedy_logprobs.hpp"

#include "kernels/sample/check_logits.hpp"
#include "kernels/speculate/check_accept.hpp"
#include "kernels/speculate/greedy_logprobs_op.hpp"

namespace stepgraph {

void check(const greedy_logprobs_params& p) {
  constexpr const char* op = greedy_logprobs_op::name;
  STEPGRAPH_EXPECTS(p.lines > 0, op, ": lines must be positive, got ", p.lines);
  detail::check_logits(op, p.logits, p.logits_stride, p.lines, p.vocab_size);
  detail::check_allowed(op, p.allowed, p.vocab_size, p.lines);
  detail::check_pointers(op, {{"live_lines", p.live_lines}, {"argmax", p.argmax}});
  STEPGRAPH_EXPECTS(p.logprobs || p.unfiltered_logprobs, op,
                    ": logprobs and unfiltered_logprobs are null, nothing is asked for");
  if (p.verify.rows == 0) return;
  detail::check_verify(op, p.verify);
  detail::check_pointers(op, {{"verify.token_ids", p.verify.token_ids}, {"row_of", p.row_of}});
  STEPGRAPH_EXPECTS(p.stride >= p.verify.max_query_count, op, ": stride ", p.stride,
                    " is less than max_query_count ", p.verify.max_query_count);
}

void greedy_logprobs(stream_ref at, const greedy_logprobs_params& params) {
  check(params);
  launch_rows(at, greedy_logprobs_op{params});
}

}  // namespace stepgraph
