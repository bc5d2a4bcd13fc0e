#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

namespace stepgraph {

/// The packed tokens of a verify step: node j of row r is token cu_seqlens_q[r] + j; node 0 is the row's last
/// token, the others are drafts. Made by `verify_inputs`.
struct verify_view {
  const std::int32_t* live_rows = nullptr;     // n
  std::int32_t rows = 0;                       // B, captured
  std::int32_t max_query_count = 0;            // Emax, at most 64 where there are parents
  const std::int32_t* cu_seqlens_q = nullptr;  // [rows + 1]
  const std::int32_t* token_ids = nullptr;     // [tokens]
  const std::int32_t* parents = nullptr;       // [tokens] node of the same row, or null: a chain

  /// Tokens of `row` in this step; 0 for a dead row.
  STEPGRAPH_HD int count(int row) const {
    if (row >= live_count(live_rows, rows)) return 0;
    const int count = cu_seqlens_q[row + 1] - cu_seqlens_q[row];
    return count < 0 ? 0 : count > max_query_count ? max_query_count : count;
  }

  STEPGRAPH_HD int parent(int first, int node) const { return parents ? parents[first + node] : node - 1; }
};

/// What an accept leaves for commit, finish and draft-extend. The vectors are written in full, the lines only
/// as far as their counts say.
struct accept_result {
  std::int32_t* accept_count = nullptr;  // [rows] a, drafts kept; 0 for dead rows and E = 0
  std::int32_t* emit_count = nullptr;    // [rows] a + 1; a where the row ended without a bonus; 0 where E = 0
  std::int32_t* cache_advance = nullptr;  // [rows] new tokens that count in the cache: a + 1; 0 where E = 0
  std::int32_t* next_token = nullptr;     // [rows] the last one emitted, -1 for none; 0 for dead rows
  std::int32_t* emit_tokens = nullptr;    // [rows, stride], emit_count entries a row
  std::int32_t* path = nullptr;           // [rows, stride] nodes kept, the root first, a + 1 entries a row
  std::int64_t stride = 0;                // entries between rows, at least Emax

  STEPGRAPH_HD std::int32_t* emitted(int row) const { return emit_tokens + row * stride; }
  STEPGRAPH_HD std::int32_t* path_of(int row) const { return path + row * stride; }

  /// A row that had no tokens, or is dead.
  STEPGRAPH_HD void none(int row, bool live) const {
    accept_count[row] = emit_count[row] = cache_advance[row] = 0;
    next_token[row] = live ? -1 : 0;
  }

  /// Draft `node` is kept as number `accepted` (from 0).
  STEPGRAPH_HD void keep(int row, int accepted, int node, std::int32_t token) const {
    emitted(row)[accepted] = token;
    path_of(row)[accepted + 1] = node;
  }

  /// The walk is over; `bonus` is the token after the kept ones, or negative where the row ended without.
  STEPGRAPH_HD void finish(int row, int accepted, std::int32_t bonus) const {
    path_of(row)[0] = accepted == 0 && guard_off("accept-zero") ? -1 : 0;
    if (bonus >= 0) emitted(row)[accepted] = bonus;
    accept_count[row] = accepted;
    emit_count[row] = accepted + (bonus >= 0 ? 1 : 0);
    cache_advance[row] = accepted + 1;
    next_token[row] = bonus >= 0 ? bonus : accepted > 0 ? emitted(row)[accepted - 1] : -1;
  }
};

}  // namespace stepgraph
