#include "kernels/tile_driver.hpp"

namespace stepgraph {

// note: a block costs 1.5 to 3 ns whether it finds work or not, so short lines want few. Copies of 16 bytes want
// two blocks a multiprocessor once lines are long, gathers of single entries are content with half a block. All
// blocks must be resident together, or the last begin their share when the others have had theirs.
tile_grid grid_for(int lines, int least_columns, int resident, int multiprocessors) {
  tile_grid grid;
  if (lines == 0) return grid;
  const bool copies = least_columns >= 1024, light = resident > 2;
  const int own = std::min(lines, 8 * multiprocessors);
  const int wanted = lines <= 8        ? multiprocessors / 8
                     : copies && light ? 2 * multiprocessors
                     : copies          ? multiprocessors
                                       : multiprocessors / 2;
  while (own << (grid.parts_shift + 1) <= wanted) ++grid.parts_shift;
  grid.heads = own << grid.parts_shift;
  grid.helpers = lines > own || (copies && !light) ? multiprocessors : std::max(1, multiprocessors / 4);
  grid.lets_in_late = own > multiprocessors;
  return grid;
}

}  // namespace stepgraph
