#include "kernels/speculate/finish_rows.hpp"

#include "kernels/speculate/check_accept.hpp"
#include "kernels/speculate/finish_rows_op.hpp"

namespace stepgraph {

const char* to_string(finish_reason reason) noexcept {
  switch (reason) {
    case finish_reason::running:
      return "running";
    case finish_reason::end_of_sequence:
      return "end of sequence";
    case finish_reason::token_budget:
      return "token budget";
    case finish_reason::context_limit:
      return "context limit";
    case finish_reason::host_stop:
      return "stopped by the host";
    case finish_reason::fault:
      return "fault";
  }
  return "unknown reason";
}

void check(const finish_rows_params& p) {
  constexpr const char* op = finish_rows_op::name;
  detail::check_verify(op, p.verify);
  detail::check_result(op, p.result, p.verify.max_query_count);
  detail::check_pointers(
      op, {{"cache_seqlens", p.cache_seqlens}, {"requests", p.requests.data}, {"finished", p.finished}});
  STEPGRAPH_EXPECTS(p.request_count > 0, op, ": request_count must be positive, got ", p.request_count);
  STEPGRAPH_EXPECTS(p.end_id_count >= 0, op, ": end_id_count must not be negative, got ", p.end_id_count);
  if (p.end_id_count > 0) detail::check_pointers(op, {{"end_ids", p.end_ids}});
  STEPGRAPH_EXPECTS(p.max_context > 0, op, ": max_context must be positive, got ", p.max_context);
}

void finish_rows(stream_ref at, const finish_rows_params& params) {
  check(params);
  launch_tiles(at, finish_rows_op{params});
}

}  // namespace stepgraph
