#pragma once

#include <cstdint>

#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// E, the query tokens of each row, packed row after row and cut off at the token bucket.
struct query_tokens {
  const std::int32_t* counts = nullptr;  // E [rows], or one number for all rows; device memory
  bool uniform = false;                  // counts is one number
  std::int32_t max_count = 0;            // Emax: E is clamped to [0, Emax]
  std::int32_t tokens = 0;               // C, captured; tokens past it are dropped and reported

  STEPGRAPH_HD std::int32_t raw(int row) const { return counts[uniform ? 0 : row]; }

  /// E of a row whose number is `value`, 0 for a dead row.
  STEPGRAPH_HD std::int32_t count(const row_lengths& lengths, int row, std::int32_t value) const {
    return row >= lengths.live() || value < 0 ? 0 : value > max_count ? max_count : value;
  }
  STEPGRAPH_HD std::int32_t count(const row_lengths& lengths, int row) const {
    return count(lengths, row, raw(row));
  }

  /// Of `count` tokens with `before` in front of them, those that the token bucket has room for: [first, end).
  struct range {
    std::int32_t first, end;
  };
  STEPGRAPH_HD range kept(std::int64_t before, std::int32_t count) const {
    const std::int64_t limit = tokens;
    return {static_cast<std::int32_t>(before < limit ? before : limit),
            static_cast<std::int32_t>(before + count < limit ? before + count : limit)};
  }
  /// Reports a row's number that was clamped to `count`, or tokens that were cut off.
  STEPGRAPH_HD void report(const row_lengths& lengths, int row, std::int32_t value, std::int32_t count,
                           const range& of, const fault_sink& faults, op_id op) const {
    if (row < lengths.live() && value != count)
      faults.report(op, row, row_status::query_count_clamped, value);
    else if (of.end - of.first < count)
      faults.report(op, row, row_status::query_count_clamped, count);
  }

  /// The number of the row that a thread of a team begins with.
  template <class Team>
  STEPGRAPH_HD std::int32_t first_raw(const Team& team, const row_lengths& lengths) const {
    return raw(team.rank() < lengths.rows ? team.rank() : lengths.rows - 1);
  }
};

/// A live token's place: its row, and how many tokens it sees, itself included.
struct token_place {
  std::int32_t row;
  std::int32_t number;  // j, among the row's tokens
  std::int64_t causal;  // c = max(0, len - E + j + 1)
};

/// The row whose tokens hold the live `token`, by cu_seqlens_q [rows + 1].
STEPGRAPH_HD int find_row(const std::int32_t* cu_seqlens_q, int rows, int token) {
  int low = 0, high = rows - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (cu_seqlens_q[middle] <= token)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

STEPGRAPH_HD token_place place_of(const row_lengths& lengths, const query_tokens& query,
                                  const std::int32_t* cu_seqlens_q, int row, int token) {
  const std::int32_t number = token - cu_seqlens_q[row];
  const std::int64_t causal = lengths.length(row) - query.count(lengths, row) + number + 1;
  return {row, number, causal > 0 ? causal : 0};
}

STEPGRAPH_HD token_place place_of(const row_lengths& lengths, const query_tokens& query,
                                  const std::int32_t* cu_seqlens_q, int token) {
  return place_of(lengths, query, cu_seqlens_q, find_row(cu_seqlens_q, lengths.rows, token), token);
}

/// Writes cu_seqlens_q [rows + 1] unless it is null, reporting counts that were clamped or cut off; a sync()
/// makes it readable. `first_raw`: read by the caller before other sums, whose latency then covers it.
/// `visit(row, first, end)` sees every row's tokens [first, end). Returns the live tokens.
template <class Team, class Visit>
STEPGRAPH_HD std::int32_t scan_query_tokens(Team& team, const row_lengths& lengths, const query_tokens& query,
                                            std::int32_t* cu_seqlens_q, const fault_sink& faults, op_id op,
                                            std::int32_t first_raw, const Visit& visit) {
  std::int64_t before = 0;
  if (team.rank() == 0 && cu_seqlens_q) cu_seqlens_q[0] = 0;
  for (int base = 0; base < lengths.rows; base += team.size()) {
    const int row = base + team.rank();
    const bool captured = row < lengths.rows;
    const std::int32_t raw = base == 0 ? first_raw : captured ? query.raw(row) : 0;
    const std::int32_t count = captured ? query.count(lengths, row, raw) : 0;
    const auto sum = team.exclusive_sum(count);
    if (captured) {
      const auto kept = query.kept(before + sum.before, count);
      query.report(lengths, row, raw, count, kept, faults, op);
      if (cu_seqlens_q) cu_seqlens_q[row + 1] = kept.end;
      visit(row, kept.first, kept.end);
    }
    before += sum.total;
  }
  return static_cast<std::int32_t>(before < query.tokens ? before : query.tokens);
}

/// `write_lengths` and `scan_query_tokens` together, at the price of one of them.
template <class Team>
STEPGRAPH_HD void write_lengths_and_queries(Team& team, const row_lengths& lengths,
                                            std::int32_t* cache_seqlens, const index_sink& cu_seqlens_k,
                                            const query_tokens& query, std::int32_t* cu_seqlens_q,
                                            const fault_sink& faults, op_id op) {
  std::int64_t lengths_before = 0, queries_before = 0;
  if (team.rank() == 0) {
    if (cu_seqlens_k) cu_seqlens_k.store(0, 0);
    cu_seqlens_q[0] = 0;
  }
  for (int base = 0; base < lengths.rows; base += team.size()) {
    const int row = base + team.rank();
    const bool captured = row < lengths.rows;
    const std::int32_t raw = captured ? query.raw(row) : 0;
    const std::int64_t length = captured ? lengths.length_reported(row, faults, op) : 0;
    const std::int32_t count = captured ? query.count(lengths, row, raw) : 0;
    const auto sum = team.exclusive_sums(length, count);
    if (captured) {
      cache_seqlens[row] = static_cast<std::int32_t>(length);
      if (cu_seqlens_k) cu_seqlens_k.store(row + 1, lengths_before + sum.first.before + length);
      const auto kept = query.kept(queries_before + sum.second.before, count);
      query.report(lengths, row, raw, count, kept, faults, op);
      cu_seqlens_q[row + 1] = kept.end;
    }
    lengths_before += sum.first.total;
    queries_before += sum.second.total;
  }
}

/// `slot`, which is source.known_slot(request, position): -1 is reported, as request or entry is out of range.
template <class Faults>
STEPGRAPH_HD std::int64_t slot_reported(const page_source& source, std::int64_t request,
                                        std::int64_t position, std::int64_t slot, Faults& faults, op_id op,
                                        int row) {
  if (slot >= 0) return slot;
  if (!source.has_request(request))
    faults.report(op, row, row_status::request_out_of_range, request);
  else
    faults.report(op, row, row_status::slot_out_of_range, source.entry(request, position));
  return -1;
}

/// `slot` through a page map; the entry of a page past the map is reported.
template <class Faults>
STEPGRAPH_HD std::int64_t slot_by_page_map(const index_map& map, std::int64_t slot, const page_source& source,
                                           Faults& faults, op_id op, int row) {
  if (slot < 0) return -1;
  const int page_shift = source.page_shift;
  const std::int64_t page = slot >> page_shift;
  if (!map.has(page)) faults.report(op, row, row_status::slot_out_of_range, source.entry_of(slot));
  const std::int64_t mapped = map[page];
  return mapped < 0 ? -1 : (mapped << page_shift) + (slot & ((std::int64_t{1} << page_shift) - 1));
}

/// `slot` through a slot map; the entry of a slot past the map is reported.
STEPGRAPH_HD std::int64_t slot_by_slot_map(const index_map& map, std::int64_t slot, const page_source& source,
                                           const fault_sink& faults, op_id op, int row) {
  if (slot >= 0 && !map.has(slot))
    faults.report(op, row, row_status::slot_out_of_range, source.entry_of(slot));
  return map[slot];
}

}  // namespace stepgraph
