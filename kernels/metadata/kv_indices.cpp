#include "kernels/metadata/kv_indices.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/kv_indices_op.hpp"

namespace stepgraph {

void kv_indices(stream_ref at, const kv_indices_params& p) {
  constexpr const char* op = kv_indices_op::name;
  detail::check_cached(op, p.lengths, p.source, p.requests);
  detail::check_map(op, "page_map", p.page_map);
  detail::check_map(op, "slot_map", p.slot_map);
  STEPGRAPH_EXPECTS(!p.page_map || !p.slot_map, op, ": page_map and slot_map exclude each other");
  detail::check_pointers(op, {{"indptr", p.indptr.data}, {"indices", p.indices.data}});
  STEPGRAPH_EXPECTS(p.capacity > 0, op, ": capacity must be positive, got ", p.capacity);
  detail::check_sums(op, "indptr", p.indptr, p.lengths.rows, p.lengths.cap);
  launch_tiles(at, kv_indices_op{p});
}

void unified_kv_indices(stream_ref at, const unified_kv_indices_params& p) {
  constexpr const char* op = unified_kv_indices_op::name;
  detail::check_lengths(op, p.lengths);
  detail::check_query(op, p.query);
  detail::check_pointers(op, {{"prefix_indptr", p.prefix_indptr.data}});
  STEPGRAPH_EXPECTS(p.prefix_indices || p.prefix_count == 0, op, ": prefix_indices is null");
  STEPGRAPH_EXPECTS(p.extend_indices || p.extend_count == 0, op, ": extend_indices is null");
  detail::check_pointers(op, {{"indptr", p.indptr.data}, {"indices", p.indices.data}});
  STEPGRAPH_EXPECTS(p.capacity > 0, op, ": capacity must be positive, got ", p.capacity);
  STEPGRAPH_EXPECTS(p.lengths.cap + p.query.max_count < INT32_MAX, op, ": cap ", p.lengths.cap, " and ",
                    p.query.max_count, " query tokens pass 2^31");
  detail::check_sums(op, "indptr", p.indptr, p.lengths.rows, p.lengths.cap + p.query.max_count);
  launch_tiles(at, unified_kv_indices_op{p});
}

}  // namespace stepgraph
