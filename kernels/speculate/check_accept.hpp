#pragma once

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/speculate/accept_result.hpp"

/// What every op over a verify step refuses before it launches, said once.
namespace stepgraph::detail {

inline void check_verify(const char* op, const verify_view& verify) {
  STEPGRAPH_EXPECTS(verify.rows > 0, op, ": verify.rows must be positive, got ", verify.rows);
  STEPGRAPH_EXPECTS(verify.max_query_count > 0, op, ": verify.max_query_count must be positive, got ",
                    verify.max_query_count);
  STEPGRAPH_EXPECTS(!verify.parents || verify.max_query_count <= 64, op,
                    ": a tree has at most 64 nodes a row, verify.max_query_count is ",
                    verify.max_query_count);
  check_pointers(op, {{"verify.live_rows", verify.live_rows}, {"verify.cu_seqlens_q", verify.cu_seqlens_q}});
}

inline void check_result(const char* op, const accept_result& result, std::int32_t max_query_count) {
  check_pointers(op, {{"result.accept_count", result.accept_count},
                      {"result.emit_count", result.emit_count},
                      {"result.cache_advance", result.cache_advance},
                      {"result.next_token", result.next_token},
                      {"result.emit_tokens", result.emit_tokens},
                      {"result.path", result.path}});
  STEPGRAPH_EXPECTS(result.stride >= max_query_count, op, ": result.stride ", result.stride,
                    " is less than max_query_count ", max_query_count);
}

}  // namespace stepgraph::detail
