#include "kernels/sparse/top_k_to_slots.hpp"

#include "kernels/check.hpp"
#include "kernels/sparse/top_k_to_slots_op.hpp"

namespace stepgraph {
namespace {

template <top_k_form form>
void launch_form(stream_ref at, const top_k_to_slots_params& p) {
  if (p.row_of)
    launch_lines(at, top_k_to_slots_op_of<true, form>{p});
  else
    launch_lines(at, top_k_to_slots_op_of<false, form>{p});
}

}  // namespace

void top_k_to_slots(stream_ref at, const top_k_to_slots_params& p) {
  constexpr const char* op = top_k_to_slots_op_of<true>::name;
  detail::check_pointers(op, {{"live_tokens", p.live_tokens}});
  STEPGRAPH_EXPECTS(p.tokens > 0, op, ": tokens must be positive, got ", p.tokens);
  STEPGRAPH_EXPECTS(p.topk > 0, op, ": topk must be positive, got ", p.topk);
  STEPGRAPH_EXPECTS(p.topk <= 1 << 30, op, ": topk must be at most 2^30, got ", p.topk);
  detail::check_pointers(op, {{"indices", p.indices.data}});
  STEPGRAPH_EXPECTS(!p.indices.wide, op, ": indices must be int32, got int64");
  STEPGRAPH_EXPECTS(p.index_columns >= p.topk, op, ": indices has ", p.index_columns,
                    " columns, fewer than topk ", p.topk);
  STEPGRAPH_EXPECTS(p.index_stride >= p.index_columns || p.tokens == 1, op, ": index_stride ", p.index_stride,
                    " is less than its ", p.index_columns, " columns");
  detail::check_pointers(op, {{"table", p.table}});
  STEPGRAPH_EXPECTS(p.table_lines > 0 && p.table_columns > 0 && p.table_columns <= INT32_MAX, op,
                    ": table has ", p.table_lines, " lines of ", p.table_columns, " columns");
  STEPGRAPH_EXPECTS(p.table_stride >= p.table_columns || p.table_lines == 1, op, ": table_stride ",
                    p.table_stride, " is less than its ", p.table_columns, " columns");
  STEPGRAPH_EXPECTS(p.row_of || p.table_lines >= p.tokens, op, ": row_of is null and the table has ",
                    p.table_lines, " lines, fewer than ", p.tokens, " tokens");
  detail::check_pointers(op, {{"slots", p.slots.data}});
  STEPGRAPH_EXPECTS(p.slots.skip == -1, op, ": slots.skip must be -1, got ", p.slots.skip);
  detail::check_table(op, "slots", p.slots, p.tokens, p.topk);
  const auto lie = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) & 15; };
  const bool wide = lie(p.indices.data) == lie(p.slots.data) && ((p.index_stride - p.slots.stride) & 3) == 0;
  if (!wide)
    launch_form<top_k_form::narrow>(at, p);
  else if (p.count || p.last_plus_one || p.slots.tail.mode != tail_mode::none)
    launch_form<top_k_form::wide>(at, p);
  else
    launch_form<top_k_form::plain>(at, p);
}

}  // namespace stepgraph
