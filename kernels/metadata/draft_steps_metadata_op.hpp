#pragma once

#include "kernels/metadata/decode_metadata_op.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"

namespace stepgraph {

/// Body of `draft_steps_metadata`. The first lines are the steps, each with its vectors for its one column, so that
/// steps run beside each other; then come the rows of the page tables.
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
  STEPGRAPH_HD void tile(Team& team, int index, const line& line, std::int32_t begin, std::int32_t end) const {
    if (index >= p.steps) return decode_metadata_op{p.decode}.tile(team, index - p.steps, line, begin, end);
    step_vectors(team, index);
  }

 private:
  template <class Team>
  STEPGRAPH_HD void step_vectors(Team& team, int step) const {
    row_lengths lengths = p.decode.lengths;
    lengths.delta = step + 1;
    const std::int64_t rows = lengths.rows, first_token = std::int64_t{step} * p.query.tokens;
    scan_rows(
        team, lengths.rows, p.cu_seqlens_k.from(step * (rows + 1)),
        [&](int row) { return lengths.length_reported(row, p.decode.faults, id); },
        [&](int row, std::int64_t length, std::int64_t) {
          p.cache_seqlens[step * rows + row] = static_cast<std::int32_t>(length);
        });
    const std::int32_t live =
        scan_query_tokens(team, lengths, p.query, nullptr, p.decode.faults, id, [&](int row, int first, int end) {
          const std::int64_t base = lengths.length(row) - p.query.count(lengths, row);
          for (int token = first; token < end; ++token)
            write_token(row, first_token + token, base + (token - first));
        });
    for (int token = live + team.rank(); token < p.query.tokens; token += team.size())
      write_token(-1, first_token + token, -1);
  }

  /// `at`: the token's place in the outputs; `position` is negative where it stores nothing.
  STEPGRAPH_HD void write_token(int row, std::int64_t at, std::int64_t position) const {
    if (p.position) p.position[at] = static_cast<std::int32_t>(position < 0 ? 0 : position);
    if (!p.out_cache_loc) return;
    const decode_metadata_params& d = p.decode;
    std::int64_t slot = -1;
    if (position >= 0) slot = slot_reported(d.source, d.requests[row], position, d.faults, id, row);
    if (d.page_map) slot = slot_by_page_map(d.page_map, slot, d.source.page_shift, d.faults, id, row);
    p.out_cache_loc.store(at, slot < 0 ? p.slot_skip : slot);
  }
};

}  // namespace stepgraph
