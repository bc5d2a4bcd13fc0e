#include "kernels/tile_driver.hpp"

namespace stepgraph {

// note: a block costs 1 to 2 ns whether it finds work or not, so short lines want few; copies of 16 bytes want
// two blocks a multiprocessor once lines are long, gathers of single entries are content with half a block
tile_grid grid_for(int lines, int least_columns, int multiprocessors) {
  tile_grid grid;
  if (lines == 0) return grid;
  const int own = std::min(lines, 8 * multiprocessors);
  const int wanted = least_columns >= 1024 ? 2 * multiprocessors : multiprocessors / 2;
  while (own << (grid.parts_shift + 1) <= wanted) ++grid.parts_shift;
  grid.heads = own << grid.parts_shift;
  grid.helpers = lines > own ? multiprocessors : multiprocessors / 4;
  grid.lets_in_late = own > multiprocessors;
  return grid;
}

}  // namespace stepgraph
