#include "kernels/sample/target_distribution.hpp"

#include "kernels/sample/check_logits.hpp"
#include "kernels/sample/target_distribution_op.hpp"

namespace stepgraph {

void check(const target_distribution_params& p) {
  constexpr const char* op = target_distribution_op::name;
  STEPGRAPH_EXPECTS(p.tokens > 0, op, ": tokens must be positive, got ", p.tokens);
  detail::check_logits(op, p.logits, p.logits_stride, p.tokens, p.vocab_size);
  detail::check_sampling(op, p.sampling, p.allowed, p.vocab_size, p.tokens);
  detail::check_pointers(
      op, {{"live_tokens", p.live_tokens}, {"row_of", p.row_of}, {"distributions", p.distributions}});
}

void target_distribution(stream_ref at, const target_distribution_params& params) {
  check(params);
  launch_rows(at, target_distribution_op{params});
}

}  // namespace stepgraph
