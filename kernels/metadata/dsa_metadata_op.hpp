#pragma once

#include "kernels/metadata/dsa_metadata.hpp"
#include "kernels/metadata/page_lines.hpp"
#include "kernels/metadata/row_vectors.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `dsa_metadata`. Lines are the rows of the page table, then those of the token table, then those of
/// the pooled table, as far as these are there; what a row's tokens share is read once and stored on all
/// their lines. One row more stands for the dead tokens, whose lines only the tail `whole` writes.
struct dsa_metadata_op {
  static constexpr const char* name = "dsa_metadata";
  static constexpr op_id id = op_id::dsa_metadata;
  static constexpr int tile_columns = 4096;
  using line = page_line;
  enum class table { pages, tokens, pooled };
  dsa_metadata_params p;

  STEPGRAPH_HD int rows() const { return p.lengths.rows; }
  STEPGRAPH_HD int least_columns() const {
    return least_columns_of(p.page_table_1 ? 0 : p.source.column_shift());
  }
  /// Whether the page table is made beside the token table, from the same entries.
  STEPGRAPH_HD bool pages_by_tokens() const {
    return p.real_page_table && p.page_table_1 && !p.source.page_granular && !p.page_map &&
           p.real_page_table.tail.mode == tail_mode::none && p.page_table_1.tail.mode == tail_mode::none;
  }
  STEPGRAPH_HD int lines() const {
    const int of_pages = p.real_page_table && !pages_by_tokens() ? 1 : 0;
    return (rows() + 1) * (of_pages + (p.page_table_1 ? 1 : 0) + (p.pooled_table ? 1 : 0));
  }
  /// Which table a line belongs to; `index` becomes the row.
  STEPGRAPH_HD table split(int& index) const {
    table which = p.real_page_table && !pages_by_tokens() ? table::pages
                  : p.page_table_1                        ? table::tokens
                                                          : table::pooled;
    while (index > rows()) {
      index -= rows() + 1;
      which = which == table::pages && p.page_table_1 ? table::tokens : table::pooled;
    }
    return which;
  }
  STEPGRAPH_HD const table_sink& sink(table which) const {
    return which == table::pages    ? p.real_page_table
           : which == table::tokens ? p.page_table_1
                                    : p.pooled_table;
  }

  STEPGRAPH_HD line load(int index) const {
    const table which = split(index);
    const table_sink& to = sink(which);
    if (index == rows()) {
      const bool fills = p.line_per_token && which != table::pooled && to.tail.mode == tail_mode::whole;
      return {fills ? static_cast<std::int32_t>(to.columns) : 0, 0, nullptr};
    }
    const std::int64_t length = p.lengths.length(index), request = p.requests.fetch(index);
    const std::int64_t live = which == table::pages    ? pages_of(length, p.source.page_shift)
                              : which == table::tokens ? length
                                                       : pages_of(length / p.kpool, p.source.page_shift);
    return page_line_of(p.source, request, live, to, index < p.lengths.live());
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const std::int32_t first_raw = p.query.first_raw(team, p.lengths);
    scan_rows(
        team, rows(), p.cu_seqlens_k, [&](int row) { return p.lengths.length_reported(row, p.faults, id); },
        [&](int row, std::int64_t length, std::int64_t) {
          row_vectors(row, static_cast<std::int32_t>(length));
        });
    const std::int32_t live = scan_query_tokens(team, p.lengths, p.query, p.cu_seqlens_q, p.faults, id,
                                                first_raw, [](int, int, int) {});
    team.sync();  // cu_seqlens_q is read
    scan_rows(
        team, p.query.tokens, p.dsa_cu_seqlens_k,
        [&](int token) { return token_vectors(token, token < live); },
        [&](int token, std::int64_t kept, std::int64_t) {
          p.dsa_cache_seqlens[token] = static_cast<std::int32_t>(kept);
        });
  }

  template <class Team>
  STEPGRAPH_HD void tile(Team& team, int index, const line& line, std::int32_t begin,
                         std::int32_t end) const {
    const table which = split(index);
    const token_lines to = which == table::pooled ? token_lines{index, 1} : lines_of(team, index);
    if (to.count == 0) return;
    if (index < rows() && !line.source && begin < line.live && team.rank() == 0)
      p.faults.report(id, index, row_status::request_out_of_range, p.requests[index]);
    const bad_entry bad =
        which == table::tokens && pages_by_tokens()
            ? write_slots_and_pages(team, line, to.first, to.count, begin, end)
        : which == table::tokens
            ? write_slots(team, p.source, p.page_map, p.page_table_1, line, to.first, to.count, begin, end)
            : write_pages(team, p.source, p.page_map, sink(which), line, to.first, to.count, begin, end,
                          which == table::pooled ? group_shift() : 0);
    if (bad.found) p.faults.report(id, index, row_status::slot_out_of_range, bad.value);
  }

 protected:
  /// Lines of the expanded tables that a row's tokens have.
  struct token_lines {
    std::int64_t first;
    int count;
  };
  template <class Team>
  STEPGRAPH_HD token_lines lines_of(Team& team, int row) const {
    if (!p.line_per_token) return {row, 1};
    const std::int64_t tokens = p.query.tokens;
    const std::int64_t before =
        sum_before(team, row, [&](int other) { return p.query.count(p.lengths, other); });
    const std::int64_t first = before < tokens ? before : tokens;
    const std::int64_t count = row == rows() ? tokens : p.query.count(p.lengths, row);
    return {first, static_cast<int>(count < tokens - first ? count : tokens - first)};
  }

  template <class Team>
  STEPGRAPH_HD bad_entry write_slots_and_pages(Team& team, const line& line, std::int64_t first, int copies,
                                               std::int32_t begin, std::int32_t end) const {
    const table_sink &tokens = p.page_table_1, &pages = p.real_page_table;
    const int shift = p.source.page_shift;
    if (!line.source) {
      const auto page = [&](std::int32_t x) { return static_cast<std::int32_t>(pages_of(x, shift)); };
      fill_columns(team, tokens.line(first), tokens.stride, copies, begin, end, tokens.skip);
      fill_columns(team, pages.line(first), pages.stride, copies, page(begin), page(end), pages.skip);
      return {};
    }
    slots_and_pages_output out{page_converter::of_slots(p.source, tokens.skip),
                               shift,
                               pages.skip,
                               tokens.line(first),
                               pages.line(first),
                               tokens.stride,
                               pages.stride,
                               copies};
    const strided_entries in{line.source, 0};
    map_columns(team, in, out, begin, end);
    return bad_entry_of(in, out.slot.bad());
  }

 private:
  STEPGRAPH_HD int group_shift() const {
    int shift = 0;
    while ((1 << shift) < p.kpool) ++shift;
    return shift;
  }

  STEPGRAPH_HD void row_vectors(int row, std::int32_t length) const {
    p.cache_seqlens[row] = length;
    if (p.pooled_len) p.pooled_len[row] = length / p.kpool;
    for (int j = 0; p.paged_mqa_ctx_lens && j < p.mqa_tokens; ++j)
      p.paged_mqa_ctx_lens[std::int64_t{row} * p.mqa_tokens + j] = length;
  }

  /// Writes the token's row and causal length; returns dsa_len of the latter.
  STEPGRAPH_HD std::int64_t token_vectors(int token, bool live) const {
    const token_place at = live ? place_of(p.lengths, p.query, p.cu_seqlens_q, token) : token_place{0, 0, 0};
    if (p.row_of) p.row_of[token] = at.row;
    if (p.expanded) p.expanded[token] = static_cast<std::int32_t>(at.causal);
    const std::int64_t odd = p.kpool > 1 ? at.causal % p.kpool : 0;  // tokens of the unfinished group
    const std::int64_t whole = at.causal - odd;
    return (whole < p.topk ? whole : p.topk) + odd;
  }
};

}  // namespace stepgraph
