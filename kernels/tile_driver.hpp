#pragma once

#include <algorithm>
#include <cstdint>

#include "graphs/error.hpp"
#include "graphs/stream.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/guard.hpp"

/// One driver for every bookkeeping op. An op is a small trivially copyable struct that says what it does to
/// rows and columns; the driver decides where that runs, so an op knows nothing of grids, blocks or threads:
///
///   struct my_op {
///     static constexpr const char* name = "my_op";
///     static constexpr int tile_columns = 4096;  // columns worth one block's while; 0: vectors only
///     int rows() const;                          // rows captured, B
///     std::int64_t live_columns(int row) const;  // from device memory; 0 for a dead row
///     template <class Team>
///     void vectors(Team&) const;                 // the fixed-size vectors, once, by one team
///     template <class Team>
///     void tile(Team&, int row, std::int64_t begin, std::int64_t end) const;
///   };
///
/// A team is the threads that work on one piece: a block on the GPU, one thread on the host. It has `rank()`,
/// `size()`, `sync()` and `exclusive_sum(value)`. Loops over a team are written `for (i = rank; i < end; i +=
/// size)`.
///
/// On the GPU the grid is sized by the device and the batch, never by the captured width ("own row first,
/// then help"): block 0 makes the vectors, block 1 + r does the first tile of row r, and only if some row is
/// longer than one tile do the blocks scan the lengths and share out all remaining live tiles by index.
namespace stepgraph {

/// A team of one: the host's.
class host_team {
 public:
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  static void sync() {}

  struct sum {
    std::int32_t before;
    std::int32_t total;
  };
  /// Sum of `value` over lower ranks, and over all; every thread of the team calls it.
  static sum exclusive_sum(std::int32_t value) { return {0, value}; }
};

template <class Op>
void run_tiles_host(const Op& op) {
  host_team team;
  op.vectors(team);
  const int rows = op.rows();
  std::int64_t live = 0;
  for (int row = 0; row < rows; ++row) live += op.live_columns(row);
  const auto do_rows = [&op](std::int64_t first, std::int64_t last) {
    host_team mine;
    for (std::int64_t row = first; row < last; ++row)
      if (const std::int64_t columns = op.live_columns(static_cast<int>(row)); columns > 0)
        op.tile(mine, static_cast<int>(row), 0, columns);
  };
  // short work is done before another thread would have woken
  constexpr std::int64_t worth_threads = 1 << 16;
  if (live < worth_threads)
    do_rows(0, rows);
  else
    thread_pool::shared().parallel_for(rows, 1, do_rows);
}

/// Launches `op` on a CUDA stream; tile_driver.cuh defines it and the op's .cu file instantiates it.
template <class Op>
void launch_tiles_cuda(stream_ref at, const Op& op);

/// Enqueues `op` on `at`, whichever backend that is.
template <class Op>
void launch_tiles(stream_ref at, const Op& op) {
  if (at.is_host()) return enqueue_host(at, Op::name, [op] { run_tiles_host(op); });
#if STEPGRAPH_CUDA
  launch_tiles_cuda(at, op);
#else
  throw cuda_error(message(Op::name, ": this stepgraph was built without CUDA"), 0);
#endif
}

}  // namespace stepgraph
