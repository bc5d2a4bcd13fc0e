#include "kernels/tile_driver.hpp"

namespace stepgraph {

// note: a block costs 1 to 3 ns whether it finds work or not, and what must be resident beside the next kernel's
// blocks is half of what fits: one more costs 0.4 us. Short lines want few blocks; copies of 16 bytes want one a
// multiprocessor and as many helpers, for lines whose length nobody knows; gathers of single entries are content
// with half of that.
tile_grid grid_for(int lines, int least_columns, int resident, int head_blocks, int multiprocessors) {
  tile_grid grid;
  if (lines == 0) return grid;
  const bool copies = least_columns >= 1024, light = resident > 2;
  const int room = resident / 2 * multiprocessors - 1;
  const int own = std::min(lines, 8 * multiprocessors);
  const int wanted = lines <= 8 ? multiprocessors / 8
                     : copies   ? head_blocks * multiprocessors
                                : multiprocessors / 2;
  while (own << (grid.parts_shift + 1) <= wanted) ++grid.parts_shift;
  grid.heads = own << grid.parts_shift;
  const int few = copies ? 4 : 16;  // heads of few gathers reach further than any line goes
  grid.helpers = lines > 8 ? (copies ? multiprocessors : multiprocessors / 4) : multiprocessors / few;
  grid.helpers = std::max(1, grid.helpers);
  if ((light || !copies) && grid.heads < room) grid.helpers = std::min(grid.helpers, room - grid.heads);
  if (lines > own) grid.helpers = multiprocessors;
  grid.lets_in_late = grid.heads + grid.helpers > room;
  return grid;
}

}  // namespace stepgraph
