#pragma once

#include "kernels/metadata/query_tokens.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `token_inputs`; see the parameters for what it writes.
struct token_inputs_op {
  static constexpr const char* name = "token_inputs";
  static constexpr op_id id = op_id::token_inputs;
  static constexpr int tile_columns = 0;  // vectors only
  token_inputs_params p{};

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    if (p.max_query_count <= few && !p.depth)
      few_vectors(team);
    else
      vectors(team, p.max_query_count <= 16 * few, [](int, const token_place&, bool) {});
  }

  /// The same, and `visit(token, place, live)` for each captured token. `short_rows`: rows have few tokens, so
  /// that their threads write whose they are, and nobody need search.
  template <class Team, class Visit>
  STEPGRAPH_HD void vectors(Team& team, bool short_rows, const Visit& visit) const {
    const query_tokens query{p.query_counts, false, p.max_query_count, p.tokens};
    const std::int32_t live_tokens =
        scan_query_tokens(team, p.lengths, query, p.cu_seqlens_q, p.faults, id,
                          query.first_raw(team, p.lengths), [&](int row, int first, int end) {
                            p.lengths.length_reported(row, p.faults, id);
                            if (p.last_row) p.last_row[row] = end > first ? end - 1 : 0;
                            for (int token = first; short_rows && token < end; ++token) p.row_of[token] = row;
                          });
    team.sync();
    for (int token = team.rank(); token < p.tokens; token += team.size()) {
      token_place at{0, 0, 0};
      const bool live = token < live_tokens;
      if (live)
        at = short_rows ? place_of(p.lengths, query, p.cu_seqlens_q, p.row_of[token], token)
                        : place_of(p.lengths, query, p.cu_seqlens_q, token);
      token_vectors(query, token, at, live);
      visit(token, at, live);
    }
  }

 private:
  static constexpr int few = 4;  // tokens of a row that its thread makes by itself

  /// What the first `few` tokens of a row need: their slots, -1 where there is none.
  struct row_tokens {
    std::int64_t length, request;
    std::int32_t count;
    std::int64_t slot[few];
  };
  STEPGRAPH_HD row_tokens tokens_of(const query_tokens& query, int row, std::int32_t raw) const {
    row_tokens made;
    made.request = p.requests.fetch(row);
    made.length = p.lengths.length_reported(row, p.faults, id);
    made.count = query.count(p.lengths, row, raw);
    const bool has = p.out_cache_loc && p.source.has_request(made.request);
    STEPGRAPH_UNROLL
    for (int j = 0; j < few; ++j) {
      const std::int64_t position = made.length - made.count + j;
      made.slot[j] = has && j < made.count && position >= 0 ? p.source.slot(made.request, position) : -1;
    }
    return made;
  }

  /// The vectors where rows have `few` tokens at most: a row's thread makes them, with its slots looked up before
  /// the sums, whose latency then covers that.
  template <class Team>
  STEPGRAPH_HD void few_vectors(Team& team) const {
    const query_tokens query{p.query_counts, false, p.max_query_count, p.tokens};
    const std::int32_t first_raw = query.first_raw(team, p.lengths);
    row_tokens mine{};
    if (team.rank() < p.lengths.rows) mine = tokens_of(query, team.rank(), first_raw);
    const std::int32_t live_tokens = scan_query_tokens(
        team, p.lengths, query, p.cu_seqlens_q, p.faults, id, first_raw, [&](int row, int first, int end) {
          if (row != team.rank()) mine = tokens_of(query, row, query.raw(row));
          if (p.last_row) p.last_row[row] = end > first ? end - 1 : 0;
          STEPGRAPH_UNROLL
          for (int j = 0; j < few; ++j) {
            const std::int64_t causal = mine.length - mine.count + j + 1;
            const token_place at{row, j, causal > 0 ? causal : 0};
            if (j < end - first) write_token(first + j, at, at.causal - 1, mine.request, mine.slot[j]);
          }
        });
    for (int token = live_tokens + team.rank(); token < p.tokens; token += team.size())
      write_token(token, {0, 0, 0}, 0, 0, -1);
  }

  STEPGRAPH_HD void token_vectors(const query_tokens& query, int token, const token_place& at,
                                  bool live) const {
    std::int64_t position = at.causal > 0 ? at.causal - 1 : 0;
    if (live && p.depth) {
      position = p.lengths.length(at.row) - query.count(p.lengths, at.row) + p.depth[token];
      if (position < 0) position = 0;
    }
    std::int64_t request = 0, slot = -1;
    if (p.out_cache_loc && at.causal > 0) {
      request = p.requests[at.row];
      if (p.source.has_request(request)) slot = p.source.slot(request, at.causal - 1);
    }
    write_token(token, at, position, request, slot);
  }

  /// `slot`: where the token is stored, before the page map, or -1.
  STEPGRAPH_HD void write_token(int token, const token_place& at, std::int64_t position, std::int64_t request,
                                std::int64_t slot) const {
    p.row_of[token] = at.row;
    if (p.position) p.position[token] = static_cast<std::int32_t>(position > 0 ? position : 0);
    if (p.causal_length) p.causal_length[token] = static_cast<std::int32_t>(at.causal);
    if (p.out_cache_loc)
      p.out_cache_loc.store(token, at.causal > 0                    ? store_slot(at, request, slot)
                                   : guard_off("sink-or-minus-one") ? -1 - p.skip
                                                                    : p.skip);
  }

  STEPGRAPH_HD std::int64_t store_slot(const token_place& at, std::int64_t request, std::int64_t slot) const {
    slot = slot_reported(p.source, request, at.causal - 1, slot, p.faults, id, at.row);
    if (p.page_map) slot = slot_by_page_map(p.page_map, slot, p.source, p.faults, id, at.row);
    return slot < 0 ? p.skip : slot;
  }
};

}  // namespace stepgraph
