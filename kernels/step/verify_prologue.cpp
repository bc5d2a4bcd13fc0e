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
