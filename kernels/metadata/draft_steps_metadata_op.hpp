#pragma once

#include "kernels/metadata/decode_metadata_op.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"

namespace stepgraph {

/// Body of `draft_steps_metadata`. The first lines are the steps, each with its vectors for its one column,
/// so that steps run beside each other; then come the rows of the page tables.
struct draft_steps_metadata_op {
  static constexpr const char* name = "draft_steps_metadata";
  static constexpr op_id id = op_id::draft_steps_metadata;
  static constexpr int tile_columns = decode_metadata_op::tile_columns;
  using line = page_line;
  draft_steps_metadata_params p;  // decode.lengths.delta is `steps`

  STEPGRAPH_HD int least_columns() const { return decode_metadata_op{p.decode}.least_columns(); }
  STEPGRAPH_HD int lines() const { return p.steps + p.decode.lengths.rows; }
  STEPGRAPH_HD line load(int index) const {
    return index < p.steps ? line{1, 1, nullptr} : decode_metadata_op{p.decode}.load(index - p.steps);
  }
  template <class Team>
  STEPGRAPH_HD void vectors(Team&) const {}

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int index, const line& line, std::int32_t begin,
                         std::int32_t end) const {
    if (index >= p.steps)
      return decode_metadata_op{p.decode}.tile(team, index - p.steps, line, begin, end, id);
    step_vectors(team, index);
  }

 private:
  // note: a row's numbers are all read before one is used, and its first slot is looked up before the sums,
  // which its latency then covers; drafts have one token a row
  template <class Team>
  STEPGRAPH_HD void step_vectors(Team& team, int step) const {
    row_lengths lengths = p.decode.lengths;
    lengths.delta = guard_off("chain-advance") ? 1 : step + 1;
    const std::int64_t rows = lengths.rows, tokens = p.query.tokens;
    const index_sink cu = p.cu_seqlens_k.from(step * (rows + 1));
    std::int64_t length_before = 0, query_before = 0;
    if (team.rank() == 0 && cu) cu.store(0, 0);
    for (int base = 0; base < rows; base += team.size()) {
      const int row = base + team.rank();
      const bool captured = row < rows;
      const std::int64_t request = captured ? p.decode.requests[row] : 0;
      const std::int32_t given = captured ? p.query.raw(row) : 0;
      const std::int64_t length = captured ? lengths.length_reported(row, p.decode.faults, id) : 0;
      const bool live = captured && row < lengths.live();
      const std::int32_t count = !live || given < 0          ? 0
                                 : given > p.query.max_count ? p.query.max_count
                                                             : given;
      const std::int64_t first_slot = count > 0 ? slot_at(request, length - count) : -1;
      const auto sums = team.exclusive_sums(length, count);
      if (captured) {
        p.cache_seqlens[step * rows + row] = static_cast<std::int32_t>(length);
        if (cu) cu.store(row + 1, length_before + sums.first.before + length);
        const std::int64_t first = query_before + sums.second.before;
        if (live && (given != count || (count > 0 && first + count > tokens)))
          p.decode.faults.report(id, row, row_status::query_count_clamped, given);
        for (std::int64_t j = 0; j < count && first + j < tokens; ++j)
          write_token(step * tokens + first + j, length - count + j,
                      stored_slot(row, request, length - count + j,
                                  j == 0 ? first_slot : slot_at(request, length - count + j)));
      }
      length_before += sums.first.total;
      query_before += sums.second.total;
    }
    for (std::int64_t token = query_before + team.rank(); token < tokens; token += team.size())
      write_token(step * tokens + token, -1, -1);
  }

  /// Slot of the request's token at `position`, before the page map, or -1.
  STEPGRAPH_HD std::int64_t slot_at(std::int64_t request, std::int64_t position) const {
    return position < 0 || !p.out_cache_loc ? -1 : p.decode.source.known_slot(request, position);
  }

  /// Where a token that the bucket holds is stored, or -1; `slot` is that of slot_at.
  STEPGRAPH_HD std::int64_t stored_slot(int row, std::int64_t request, std::int64_t position,
                                        std::int64_t slot) const {
    const decode_metadata_params& d = p.decode;
    if (position < 0 || !p.out_cache_loc) return -1;
    slot = slot_reported(d.source, request, position, slot, d.faults, id, row);
    return d.page_map ? slot_by_page_map(d.page_map, slot, d.source, d.faults, id, row) : slot;
  }

  STEPGRAPH_HD void write_token(std::int64_t at, std::int64_t position, std::int64_t slot) const {
    if (p.position) p.position[at] = static_cast<std::int32_t>(position < 0 ? 0 : position);
    if (p.out_cache_loc) p.out_cache_loc.store(at, slot < 0 ? p.slot_skip : slot);
  }
};

}  // namespace stepgraph
