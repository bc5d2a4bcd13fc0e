#include "kernels/step/verify_prologue.hpp"

#include "graphs/error.hpp"
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
  STEPGRAPH_EXPECTS(p.staged_tokens, op, ": staged_tokens is null");
  STEPGRAPH_EXPECTS(!p.verify.parents || (p.staged_parents && p.verify.parent_stride > 0), op,
                    ": with trees staged_parents must be given, and parent_stride be positive, got ",
                    p.verify.parent_stride);
  STEPGRAPH_EXPECTS(!p.drafts.chain || p.drafts.seq_lens, op, ": drafts.seq_lens is null");
  launch_tiles(at, verify_prologue_op{p});
}

}  // namespace stepgraph
