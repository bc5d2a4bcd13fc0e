#pragma once

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/columns.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

/// What every op refuses before it launches, said once.
namespace stepgraph::detail {

inline void check_lengths(const char* op, const row_lengths& lengths) {
  STEPGRAPH_EXPECTS(lengths.rows > 0, op, ": lengths.rows must be positive, got ", lengths.rows);
  check_pointers(op, {{"lengths.live_rows", lengths.live_rows}, {"lengths.seq_lens", lengths.seq_lens.data}});
  STEPGRAPH_EXPECTS(lengths.cap > 0 && lengths.cap <= INT32_MAX, op,
                    ": lengths.cap must be in [1, 2^31), got ", lengths.cap);
}

inline void check_source(const char* op, const page_source& source) {
  check_pointers(op, {{"source.table", source.table}});
  STEPGRAPH_EXPECTS(source.requests > 0, op, ": source.requests must be positive, got ", source.requests);
  STEPGRAPH_EXPECTS(source.columns > 0, op, ": source.columns must be positive, got ", source.columns);
  STEPGRAPH_EXPECTS(source.row_stride >= source.columns || source.requests == 1, op, ": source.row_stride ",
                    source.row_stride, " is less than its ", source.columns, " columns");
  STEPGRAPH_EXPECTS(source.page_shift >= 0 && source.page_shift <= 10, op,
                    ": the page size must be a power of two from 1 to 1024, got 2^", source.page_shift);
}

/// Lengths and source together: no length may name a token past the source's lines.
inline void check_cached(const char* op, const row_lengths& lengths, const page_source& source,
                         const index_view& requests) {
  check_lengths(op, lengths);
  check_source(op, source);
  check_pointers(op, {{"requests", requests.data}});
  STEPGRAPH_EXPECTS(lengths.cap <= source.token_columns(), op, ": lengths.cap ", lengths.cap,
                    " is over the source's ", source.token_columns(), " tokens");
}

inline void check_query(const char* op, const query_tokens& query) {
  check_pointers(op, {{"query.counts", query.counts}});
  STEPGRAPH_EXPECTS(query.tokens > 0, op, ": query.tokens must be positive, got ", query.tokens);
  STEPGRAPH_EXPECTS(query.max_count > 0, op, ": query.max_count must be positive, got ", query.max_count);
}

/// Prefix sums over `count` numbers of at most `most` each.
inline void check_sums(const char* op, const char* name, const index_sink& cu, std::int64_t count,
                       std::int64_t most) {
  STEPGRAPH_EXPECTS(!cu || cu.wide || count * most <= INT32_MAX, op, ": ", count, " numbers of up to ", most,
                    " overflow the int32 prefix sums ", name, "; offer int64");
}

inline void check_tail(const char* op, const char* name, const tail_rule& tail) {
  STEPGRAPH_EXPECTS(tail.mode != tail_mode::multiple || tail.multiple > 0, op, ": ", name,
                    ": tail.multiple must be positive, got ", tail.multiple);
}

/// A table that is written: wide enough for `needed` live columns, lines apart.
inline void check_table(const char* op, const char* name, const table_sink& table, std::int64_t lines,
                        std::int64_t needed) {
  if (!table) return;
  // note: columns are int32 in kernels, with room for a block's stride past the end
  constexpr std::int64_t most = INT32_MAX - (1 << 16);
  STEPGRAPH_EXPECTS(table.columns >= needed || guard_off("dtype"), op, ": ", name, " has ", table.columns,
                    " columns, the longest row needs ", needed);
  STEPGRAPH_EXPECTS(table.columns <= most, op, ": ", name, " has ", table.columns, " columns, at most ", most,
                    " are supported");
  STEPGRAPH_EXPECTS(table.stride >= table.columns || lines == 1, op, ": ", name, "_stride ", table.stride,
                    " is less than its ", table.columns, " columns");
  check_tail(op, name, table.tail);
}

inline void check_map(const char* op, const char* name, const index_map& map) {
  STEPGRAPH_EXPECTS(!map || map.size > 0, op, ": ", name, " has ", map.size, " entries");
}

}  // namespace stepgraph::detail
