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

  /// Where a row's numbers lie.
  struct place {
    row_lengths::place length;
    index_place request;
    const std::int32_t* count;
    STEPGRAPH_HD std::uint64_t bits() const {
      return length.bits() | request.bits() | reinterpret_cast<std::uintptr_t>(count);
    }
  };
  template <class Team>
  STEPGRAPH_HD place vectors_place(const Team& team) const {
    return row_place(team.rank() < p.lengths.rows ? team.rank() : 0);
  }
  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    vectors(team, vectors_place(team));
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team, const place& at) const {
    if (__builtin_expect(p.max_query_count <= few && !p.depth, 1))
      few_vectors<row_tokens<few>>(
          team, [&](int row, row_tokens<few>& mine) { return read_tokens(team, row, at, mine); },
          [](int, const row_tokens<few>&, int) {}, [](int) {});
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

  /// What the tokens of a row need, `most` at most.
  template <int most>
  struct row_tokens {
    static constexpr int room = most;
    std::int64_t request;
    std::int32_t row;
    std::int32_t base;         // tokens before the row's own
    std::int32_t first;        // of them in this step
    std::int32_t entry[most];  // of the source, that name their slots; -1 where there is none
  };

  /// Reads the entries of `count` tokens behind `base`.
  template <int most>
  STEPGRAPH_HD void read_entries(row_tokens<most>& mine, std::int64_t request, std::int64_t base,
                                 std::int64_t count) const {
    const bool has = p.out_cache_loc && p.source.has_request(request);
    mine.request = request;
    mine.base = static_cast<std::int32_t>(base);
    STEPGRAPH_UNROLL
    for (int j = 0; j < most; ++j) {
      mine.entry[j] = -1;
      if (has && j < count && base + j >= 0) mine.entry[j] = p.source.entry(request, base + j);
    }
  }

  /// The vectors where rows have few tokens: a row's thread makes them by itself, with all that they need read before
  /// the sum, which covers its latency. `read(row, mine)` returns E of a captured row, 0 for a dead one;
  /// `visit(token, of, j)` sees the live tokens, `clear(token)` the others. `Item` is a `row_tokens` or more.
  /// `sum_of(row, count)` is the team's sum of the counts, whatever else it sums.
  template <class Item, class Team, class Read, class Visit, class Clear, class SumOf>
  STEPGRAPH_HD void few_vectors(Team& team, const Read& read, const Visit& visit, const Clear& clear,
                                const SumOf& sum_of) const {
    const query_tokens query{p.query_counts, false, p.max_query_count, p.tokens};
    std::int64_t before = 0;
    if (team.rank() == 0) p.cu_seqlens_q[0] = 0;
    for (int base = 0; base < p.lengths.rows; base += team.size()) {
      const int row = base + team.rank(), left = p.lengths.rows - base;
      const bool captured = row < p.lengths.rows;
      Item mine{};
      const std::int32_t raw = captured ? read(row, mine) : 0;
      const std::int32_t count = captured ? query.count(p.lengths, row, raw) : 0;
      const auto sum = sum_of(row, count);
      const auto kept = query.kept(before + sum.before, count);
      mine.row = row;
      mine.first = kept.first;
      if (captured) {
        query.report(p.lengths, row, raw, count, kept, p.faults, id);
        p.cu_seqlens_q[row + 1] = kept.end;
        if (p.last_row) p.last_row[row] = kept.end > kept.first ? kept.end - 1 : 0;
      }
      team.template spread<Item::room>(
          left < team.size() ? left : team.size(), mine, kept.end - kept.first, [&](const Item& of, int j) {
            const std::int64_t position = std::int64_t{of.base} + j;
            const token_place at{of.row, j, position >= 0 ? position + 1 : 0};
            write_token(of.first + j, at, position, of.request, p.source.slot_of(of.entry[j], position));
            visit(of.first + j, of, j);
          });
      before += sum.total;
    }
    for (std::int64_t token = before + team.rank(); token < p.tokens; token += team.size()) {
      write_token(static_cast<int>(token), {0, 0, 0}, 0, 0, -1);
      clear(static_cast<int>(token));
    }
  }

  template <class Item, class Team, class Read, class Visit, class Clear>
  STEPGRAPH_HD void few_vectors(Team& team, const Read& read, const Visit& visit, const Clear& clear) const {
    few_vectors<Item>(team, read, visit, clear,
                      [&](int, std::int32_t count) { return team.exclusive_sum(count); });
  }

  /// `slot`: where the token is stored, before the page map, or -1. `faults`: a sink or a note.
  template <class Faults>
  STEPGRAPH_HD void write_token(int token, const token_place& at, std::int64_t position, std::int64_t request,
                                std::int64_t slot, Faults& faults) const {
    p.row_of[token] = at.row;
    if (p.position) p.position[token] = static_cast<std::int32_t>(position > 0 ? position : 0);
    if (p.causal_length) p.causal_length[token] = static_cast<std::int32_t>(at.causal);
    if (p.out_cache_loc)
      p.out_cache_loc.store(token, at.causal > 0                    ? store_slot(at, request, slot, faults)
                                   : guard_off("sink-or-minus-one") ? -1 - p.skip
                                                                    : p.skip);
  }
  STEPGRAPH_HD void write_token(int token, const token_place& at, std::int64_t position, std::int64_t request,
                                std::int64_t slot) const {
    write_token(token, at, position, request, slot, p.faults);
  }

 private:
  static constexpr int few = 4;  // tokens of a row that its thread makes by itself

  STEPGRAPH_HD place row_place(int row) const {
    return {p.lengths.place_of(row), p.requests.place_of(row), p.query_counts + row};
  }

  template <class Team>
  STEPGRAPH_HD std::int32_t read_tokens(const Team& team, int row, const place& first,
                                        row_tokens<few>& mine) const {
    const place at = row == team.rank() ? first : row_place(row);
    const std::int32_t raw = *settled(at.count);
    const std::int64_t request = at.request.fetch();
    const std::int64_t length = p.lengths.length_reported(row, at.length, p.faults, id);
    const std::int32_t count =
        query_tokens{p.query_counts, false, p.max_query_count, p.tokens}.count(p.lengths, row, raw);
    read_entries(mine, request, length - count, count);
    return raw;
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

  template <class Faults>
  STEPGRAPH_HD std::int64_t store_slot(const token_place& at, std::int64_t request, std::int64_t slot,
                                       Faults& faults) const {
    slot = slot_reported(p.source, request, at.causal - 1, slot, faults, id, at.row);
    if (p.page_map) slot = slot_by_page_map(p.page_map, slot, p.source, faults, id, at.row);
    return slot < 0 ? p.skip : slot;
  }
};

}  // namespace stepgraph
