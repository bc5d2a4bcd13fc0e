#include "kernels/metadata/spec_page_table.hpp"

#include "kernels/check.hpp"
#include "kernels/metadata/spec_page_table_op.hpp"

namespace stepgraph {
namespace {

void check_view(const char* op, const char* name, const page_table_view& view) {
  STEPGRAPH_EXPECTS(view.lines > 0 && view.columns > 0 && view.columns <= INT32_MAX, op, ": ", name, " has ",
                    view.lines, " lines of ", view.columns, " columns");
  STEPGRAPH_EXPECTS(view.stride >= view.columns || view.lines == 1, op, ": ", name, ".stride ", view.stride,
                    " is less than its ", view.columns, " columns");
}

}  // namespace

void spec_page_table(stream_ref at, const spec_page_table_params& p) {
  constexpr const char* op = spec_page_table_op::name;
  STEPGRAPH_EXPECTS(p.tokens > 0, op, ": tokens must be positive, got ", p.tokens);
  detail::check_pointers(op, {{"live_tokens", p.live_tokens},
                              {"row_of", p.row_of},
                              {"by_row.data", p.by_row.data},
                              {"by_row.length", p.by_row.length},
                              {"by_token.data", p.by_token.data},
                              {"by_token.length", p.by_token.length},
                              {"total", p.total},
                              {"table", p.table.data}});
  check_view(op, "by_row", p.by_row);
  check_view(op, "by_token", p.by_token);
  STEPGRAPH_EXPECTS(p.by_token.lines >= p.tokens, op, ": by_token has ", p.by_token.lines, " lines for ",
                    p.tokens, " tokens");
  detail::check_table(op, "table", p.table, p.tokens, 1);
  launch_tiles(at, spec_page_table_op{p});
}

}  // namespace stepgraph
