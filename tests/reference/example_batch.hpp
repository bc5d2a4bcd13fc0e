#pragma once

#include <cstdint>
#include <vector>

#include "tests/reference/batch.hpp"

namespace stepgraph::reference {

/// The batch that the oracles' own tests work out by hand: 4 rows, 3 of them live, pages of 4 tokens.
///
///   row  q  E  len  base  pages of q      slots of tokens 0, 1, ...
///   0    2  2  5     3    7, 3, 5         28 29 30 31 | 12 13 14 15 | 20 ...
///   1    0  0  8     8    6, 2, 9         24 25 26 27 |  8  9 10 11 | 36 ...
///   2    4  3  1    -2    8, 1, 4         32 33 34 35 |  4  5  6  7 | 16 ...
///   3    dead, everything wild
///
/// so tokens 0, 1 are row 0's and 2, 3, 4 row 2's; 5, 6, 7 are dead.
inline batch example_batch() {
  batch in;
  in.B = 4;
  in.C = 8;
  in.n = 3;
  in.Emax = 3;
  in.P = 4;
  in.max_context = 12;
  in.page_columns = 3;
  in.E = {2, 0, 3, 1 << 30};
  in.seq_lens = {5, 8, 1, 1 << 30};
  in.q = {2, 0, 4, -(1 << 30)};
  in.pool_pages = 10;
  in.source.rows = 5;
  in.source.width = 12;
  in.source.stride = 13;
  const std::vector<std::vector<std::int64_t>> pages = {
      {6, 2, 9}, {0, 0, 0}, {7, 3, 5}, {0, 0, 0}, {8, 1, 4}};
  in.source.entry = [pages](std::int64_t q, std::int64_t t) { return pages[q][t / 4] * 4 + t % 4; };
  return in;
}

/// The same batch over a table of pages.
inline batch example_batch_of_pages() {
  batch in = example_batch();
  in.source.page_granular = true;
  in.source.width = 3;
  const auto slot = in.source.entry;
  in.source.entry = [slot](std::int64_t q, std::int64_t p) { return slot(q, p * 4) / 4; };
  return in;
}

/// Pages 7, 3, 2, 8 become 1, 2, 5, 3; the others are unmapped.
inline index_map example_page_map() {
  return {10, [](std::int64_t page) -> std::int64_t {
            const std::int64_t to[] = {0, -1, 5, 2, -1, -1, -1, 1, 3, -1};
            return to[page];
          }};
}

/// The same by slots.
inline index_map example_slot_map() {
  return {40, [](std::int64_t slot) -> std::int64_t {
            const std::int64_t page = example_page_map().entry(slot / 4);
            return page < 0 ? -1 : page * 4 + slot % 4;
          }};
}

using integers = std::vector<std::int64_t>;
using lines = std::vector<std::vector<std::int64_t>>;

}  // namespace stepgraph::reference
