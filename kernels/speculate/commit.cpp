#include "kernels/speculate/commit.hpp"

#include "kernels/speculate/check_accept.hpp"
#include "kernels/speculate/commit_op.hpp"

namespace stepgraph {
namespace {

template <class Params>
void check_path(const char* op, const Params& p) {
  detail::check_verify(op, p.verify);
  STEPGRAPH_EXPECTS(p.verify.max_query_count <= 64, op, ": verify.max_query_count must be at most 64, got ",
                    p.verify.max_query_count);
  detail::check_pointers(op, {{"accept_count", p.accept_count}, {"path", p.path}});
  STEPGRAPH_EXPECTS(p.path_stride >= p.verify.max_query_count, op, ": path_stride ", p.path_stride,
                    " is less than verify.max_query_count ", p.verify.max_query_count);
  detail::check_pointers(op, {{"slots", p.slots.data}});
}

}  // namespace

void check(const commit_slots_params& p) {
  constexpr const char* op = commit_slots_op::name;
  check_path(op, p);
  detail::check_pointers(
      op, {{"cache_seqlens", p.cache_seqlens}, {"requests", p.requests.data}, {"table", p.table}});
  STEPGRAPH_EXPECTS(p.request_count > 0 && p.columns > 0, op,
                    ": request_count and columns must be positive, got ", p.request_count, " and ",
                    p.columns);
  STEPGRAPH_EXPECTS(p.table_stride >= p.columns || p.request_count == 1, op, ": table_stride ",
                    p.table_stride, " is less than columns ", p.columns);
}

void check(const commit_kv_params& p) {
  constexpr const char* op = commit_kv_op::name;
  check_path(op, p);
  detail::check_pointers(op, {{"planes", p.planes}});
  STEPGRAPH_EXPECTS(p.plane_count > 0 && p.heads > 0, op, ": plane_count and heads must be positive, got ",
                    p.plane_count, " and ", p.heads);
  STEPGRAPH_EXPECTS(p.head_bytes > 0 && p.head_bytes % 16 == 0, op,
                    ": head_bytes must be a multiple of 16, got ", p.head_bytes);
  STEPGRAPH_EXPECTS(p.page_shift >= 0 && p.page_shift <= 10, op,
                    ": the page size must be a power of two from 1 to 1024, got 2^", p.page_shift);
  STEPGRAPH_EXPECTS(p.pool_pages > 0, op, ": pool_pages must be positive, got ", p.pool_pages);
}

void commit_slots(stream_ref at, const commit_slots_params& params) {
  check(params);
  launch_tiles(at, commit_slots_op{params});
}

void commit_kv(stream_ref at, const commit_kv_params& params) {
  check(params);
  launch_tiles(at, commit_kv_op{params});
}

}  // namespace stepgraph
