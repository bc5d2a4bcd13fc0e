#include "kernels/step/verify_prologue.hpp"

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/step/verify_prologue_op.hpp"

namespace stepgraph {

void verify_prologue(stream_ref at, const verify_prologue_params& p) {
  constexpr const char* op = verify_prologue_op::name;
  check(op, p.rows);
  check(p.verify);
  STEPGRAPH_EXPECTS(p.verify.wanted == p.rows.query_counts, op,
                    ": verify.wanted must be rows.query_counts, where the rows are gathered");
  STEPGRAPH_EXPECTS(p.verify.query_counts != p.rows.query_counts, op,
                    ": verify.query_counts must not be rows.query_counts, which is read beside it");
  // what was gathered of a row is not read again
  STEPGRAPH_EXPECTS(p.verify.finished == p.rows.state.finished &&
                        p.verify.token_capacity == p.rows.state.token_capacity &&
                        p.verify.last_token == p.rows.state.last_token,
                    op, ": verify.finished, token_capacity and last_token must be those of rows.state");
  STEPGRAPH_EXPECTS(p.verify.inputs.requests.data == p.rows.requests &&
                        p.verify.inputs.lengths.seq_lens.data == p.rows.seq_lens &&
                        p.verify.inputs.lengths.delta == 0,
                    op, ": verify.inputs must be of the requests and seq_lens that rows are gathered to");
  detail::check_pointers(op, {{"staged_tokens", p.staged_tokens}});
  if (p.verify.parents) {
    detail::check_pointers(op, {{"staged_parents", p.staged_parents}});
    STEPGRAPH_EXPECTS(p.verify.parent_stride > 0, op, ": verify.parent_stride must be positive, got ",
                      p.verify.parent_stride);
  }
  if (p.drafts.chain) detail::check_pointers(op, {{"drafts.seq_lens", p.drafts.seq_lens}});
  launch_tiles(at, verify_prologue_op{p});
}

}  // namespace stepgraph
