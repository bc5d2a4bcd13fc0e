#include "kernels/speculate/rejection_accept.hpp"

#include "kernels/sample/check_logits.hpp"
#include "kernels/speculate/check_accept.hpp"
#include "kernels/speculate/rejection_accept_op.hpp"

namespace stepgraph {

void check(const rejection_accept_params& p) {
  constexpr const char* op = rejection_accept_op::name;
  detail::check_verify(op, p.verify);
  detail::check_pointers(op, {{"verify.token_ids", p.verify.token_ids}, {"position", p.position}});
  // how many lines there are is the token bucket's affair; a stride is needed wherever there can be two
  detail::check_logits(op, p.logits, p.logits_stride, 2, p.vocab_size);
  detail::check_sampling(op, p.sampling, p.allowed, p.vocab_size, 2);
  detail::check_pointers(op, {{"distributions", p.distributions}});
  detail::check_result(op, p.result, p.verify.max_query_count);
  STEPGRAPH_EXPECTS(!p.unfiltered_logprobs || p.with_unfiltered, op,
                    ": unfiltered_logprobs needs distributions made with with_unfiltered");
  if (!p.draft.lines) return;
  detail::check_pointers(op, {{"draft.probabilities", p.draft.probabilities}});
  STEPGRAPH_EXPECTS(p.draft.stride >= p.verify.max_query_count - 1, op, ": draft.stride ", p.draft.stride,
                    " is less than the ", p.verify.max_query_count - 1, " drafts of a row");
  STEPGRAPH_EXPECTS(p.draft.line_count > 0 && p.draft.vocab_size > 0, op,
                    ": draft.line_count and draft.vocab_size must be positive, got ", p.draft.line_count,
                    " and ", p.draft.vocab_size);
  STEPGRAPH_EXPECTS(p.draft.probabilities_stride >= p.draft.vocab_size || p.draft.line_count == 1, op,
                    ": draft.probabilities_stride ", p.draft.probabilities_stride,
                    " is less than draft.vocab_size ", p.draft.vocab_size);
  STEPGRAPH_EXPECTS(p.draft.draft_ids || p.draft.vocab_size == p.vocab_size, op, ": draft.vocab_size ",
                    p.draft.vocab_size, " differs from vocab_size ", p.vocab_size,
                    " and draft.draft_ids is null");
}

void rejection_accept(stream_ref at, const rejection_accept_params& params) {
  check(params);
  launch_rows(at, rejection_accept_op{params});
}

}  // namespace stepgraph
