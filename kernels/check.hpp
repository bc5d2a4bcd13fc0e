#pragma once

#include "graphs/error.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

/// What every op refuses before it launches, said once.
namespace stepgraph::detail {

inline void check_lengths(const char* op, const row_lengths& lengths) {
  STEPGRAPH_EXPECTS(lengths.rows > 0, op, ": lengths.rows must be positive, got ", lengths.rows);
  STEPGRAPH_EXPECTS(lengths.live_rows, op, ": lengths.live_rows is null");
  STEPGRAPH_EXPECTS(lengths.seq_lens.data, op, ": lengths.seq_lens is null");
  STEPGRAPH_EXPECTS(lengths.cap > 0 && lengths.cap <= INT32_MAX, op,
                    ": lengths.cap must be in [1, 2^31), got ", lengths.cap);
}

inline void check_source(const char* op, const page_source& source) {
  STEPGRAPH_EXPECTS(source.table, op, ": source.table is null");
  STEPGRAPH_EXPECTS(source.requests > 0, op, ": source.requests must be positive, got ", source.requests);
  STEPGRAPH_EXPECTS(source.columns > 0, op, ": source.columns must be positive, got ", source.columns);
  STEPGRAPH_EXPECTS(source.row_stride >= source.columns || source.requests == 1, op, ": source.row_stride ",
                    source.row_stride, " is less than its ", source.columns, " columns");
  STEPGRAPH_EXPECTS(source.page_shift >= 0 && source.page_shift <= 10, op,
                    ": the page size must be a power of two from 1 to 1024, got 2^", source.page_shift);
}

}  // namespace stepgraph::detail
