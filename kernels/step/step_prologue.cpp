#include "kernels/step/step_prologue.hpp"

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/step/step_prologue_op.hpp"

namespace stepgraph {

void check(const char* op, const step_rows_params& p) {
  STEPGRAPH_EXPECTS(p.rows > 0, op, ": rows must be positive, got ", p.rows);
  detail::check_pointers(op, {{"rows.header", p.header},
                              {"rows.requests_in", p.requests_in},
                              {"rows.counts_in", p.counts_in},
                              {"rows.token_starts", p.token_starts},
                              {"rows.following", p.following},
                              {"rows.capacities_in", p.capacities_in},
                              {"rows.joins_in", p.joins_in},
                              {"rows.state.pages", p.state.pages},
                              {"rows.state.seq_lens", p.state.seq_lens},
                              {"rows.state.last_token", p.state.last_token},
                              {"rows.live_rows", p.live_rows},
                              {"rows.requests", p.requests},
                              {"rows.query_counts", p.query_counts},
                              {"rows.seq_lens", p.seq_lens},
                              {"rows.row_status", p.row_status}});
}

void step_prologue(stream_ref at, const step_prologue_params& params) {
  constexpr const char* op = step_prologue_op::name;
  check(op, params.rows);
  check(params.inputs);
  detail::check_pointers(op, {{"staged_tokens", params.staged_tokens}, {"token_ids", params.token_ids}});
  STEPGRAPH_EXPECTS(params.vocab_size > 0, op, ": vocab_size must be positive, got ", params.vocab_size);
  launch_tiles(at, step_prologue_op{params});
}

}  // namespace stepgraph
