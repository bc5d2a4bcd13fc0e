#pragma once

#include "kernels/metadata/kv_indices_op.hpp"

namespace stepgraph {

/// Body of `kv_indices` where the source names slots and there is no map: small. A line is a row.
struct plain_kv_indices_op : kv_indices_op {
  static constexpr bool small = true;
  struct line {
    std::int32_t columns;
    std::int32_t start;
    std::int32_t known;          // the request is in range
    std::int32_t before;         // columns of the row of the thread's rank, if before this one; -1: not known
    const std::int32_t* source;  // the request's line
  };
  /// Where the numbers of a row lie, and those of the row of the thread's own rank.
  struct place {
    row_lengths::place length, other_length;
    index_place request;
    std::int32_t other;
    STEPGRAPH_HD std::uint64_t bits() const { return length.bits() | other_length.bits() | request.bits(); }
  };

  STEPGRAPH_HD static constexpr int head_blocks() { return 1; }

  template <class Team>
  STEPGRAPH_HD place place_of(const Team& team, int row) const {
    // note: a rank past the rows reads row 0, which it does not count
    const int other = team.rank() < p.lengths.rows ? team.rank() : 0;
    return {p.lengths.place_of(row), p.lengths.place_of(other), p.requests.place_of(row), team.rank()};
  }
  STEPGRAPH_HD line load(int row) const {
    const std::int64_t request = p.requests.fetch(row);
    return line_of(row, request, p.lengths.length(row));
  }
  // note: the row's numbers and those of the rows before it are all on their way at once
  STEPGRAPH_HD line load(int row, const place& at) const {
    const std::int64_t request = at.request.fetch();
    const row_lengths::numbers own = p.lengths.read(at.length), others = p.lengths.read(at.other_length);
    line made = line_of(row, request, p.lengths.length(row, own));
    std::int32_t start = 0;
    const auto other = static_cast<std::int32_t>(p.lengths.length(at.other, others));
    made.before = at.other < row ? columns_of(at.other, other, start) : 0;
    return made;
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int row, const line& line, std::int32_t begin, std::int32_t end) const {
    const bool has_one = line.before >= 0;
    std::int64_t before = has_one ? line.before : 0;
    STEPGRAPH_NO_UNROLL
    for (int other = team.rank() + (has_one ? team.size() : 0); other < row; other += team.size())
      before += columns_of(other);
    const std::int64_t first = team.sum_of(before);
    if (__builtin_expect(line.known, 1))
      report_bad(row, pack<4>(team, token_entries{line.source, 0, line.start},
                              page_converter::of_slots(p.source, p.skip), first, begin, end));
    else
      fill(team, row, first, begin, end);
  }

  /// Whether this op does all that `p` asks for.
  static bool serves(const kv_indices_params& p) {
    return !p.source.page_granular && !p.page_map && !p.slot_map;
  }

 private:
  STEPGRAPH_HD line line_of(int row, std::int64_t request, std::int64_t length) const {
    line made{.columns = 0, .start = 0, .known = 0, .before = -1, .source = nullptr};
    made.columns = columns_of(row, static_cast<std::int32_t>(length), made.start);
    made.known = p.source.has_request(request);
    made.source = settled(p.source.line(made.known ? request : 0));
    return made;
  }
};

}  // namespace stepgraph
