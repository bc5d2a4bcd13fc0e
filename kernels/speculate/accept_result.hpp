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

  /// Where the tokens of a row lie.
  struct token_range {
    std::int32_t first, end;
  };
  STEPGRAPH_HD token_range range(int row) const { return {cu_seqlens_q[row], cu_seqlens_q[row + 1]}; }
  STEPGRAPH_HD int count(const token_range& of) const {
    const int count = of.end - of.first;
    return count < 0 ? 0 : count > max_query_count ? max_query_count : count;
  }
  /// Tokens of `row` in this step; 0 for a dead row.
  STEPGRAPH_HD int count(int row) const { return row < live_count(live_rows, rows) ? count(range(row)) : 0; }

  STEPGRAPH_HD int parent(int first, int node) const { return parents ? parents[first + node] : node - 1; }
};

/// What became of one row, as `accept_result` has it by vectors.
struct accept_counts {
  std::int32_t accepted;       // a
  std::int32_t emitted;        // tokens
  std::int32_t cache_advance;  // tokens
  std::int32_t next_token;     // -1 for none
};

/// The first tokens that a row emits, for whoever goes on with them in the same node.
struct emitted_tokens {
  static constexpr int room = 8;
  std::int32_t id[room];

  STEPGRAPH_HD void set(int number, std::int32_t token) {
    STEPGRAPH_UNROLL
    for (int i = 0; i < room; ++i)
      if (i == number) id[i] = token;
  }
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

  /// The tokens of a row from number `first` on, of `emitted` that there are.
  STEPGRAPH_HD void read(int row, int first, int emitted_count, emitted_tokens& tokens) const {
    STEPGRAPH_UNROLL
    for (int i = 0; i < emitted_tokens::room; ++i)
      if (first + i < emitted_count) tokens.id[i] = emitted(row)[first + i];
  }

  /// A row that had no tokens, or is dead.
  [[nodiscard]] STEPGRAPH_HD static accept_counts none(bool live) { return {0, 0, 0, live ? -1 : 0}; }

  /// Draft `node` is kept as number `accepted` (from 0).
  STEPGRAPH_HD void keep(int row, int accepted, int node, std::int32_t token) const {
    emitted(row)[accepted] = token;
    path_of(row)[accepted + 1] = node;
  }

  /// The walk is over; `bonus` is the token after the kept ones, or negative where the row ended without.
  [[nodiscard]] STEPGRAPH_HD accept_counts finish(int row, int accepted, std::int32_t bonus) const {
    path_of(row)[0] = accepted == 0 && guard_off("accept-zero") ? -1 : 0;
    if (bonus >= 0) emitted(row)[accepted] = bonus;
    return {accepted, accepted + (bonus >= 0 ? 1 : 0), accepted + 1,
            bonus >= 0     ? bonus
            : accepted > 0 ? emitted(row)[accepted - 1]
                           : -1};
  }

  STEPGRAPH_HD void store(int row, const accept_counts& of) const {
    accept_count[row] = of.accepted;
    emit_count[row] = of.emitted;
    cache_advance[row] = of.cache_advance;
    next_token[row] = of.next_token;
  }
};

}  // namespace stepgraph
