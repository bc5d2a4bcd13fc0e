#pragma once

#include <algorithm>
#include <cstdint>

#include "graphs/error.hpp"
#include "graphs/stream.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/guard.hpp"
#include "kernels/kernel_registry.hpp"

/// One driver for every bookkeeping op. An op is a small trivially copyable struct that says what it does to
/// lines and columns; the driver decides where that runs, so an op knows nothing of grids, blocks or threads:
///
///   struct my_op {
///     static constexpr const char* name = "my_op";
///     static constexpr int tile_columns = 4096;         // columns worth a block's while; 0: vectors only
///     template <class Team> void vectors(Team&) const;  // the fixed-size vectors, once, by one team
///     // may be left out, for an op of vectors alone: what a thread can compute before anything may be read, with
///     // `bits()`, all of it in one number
///     template <class Team> place vectors_place(const Team&) const;
///     template <class Team> void vectors(Team&, const place&) const;
///
///     // and, unless it is of vectors alone:
///     struct line { std::int32_t columns; ... };  // what a tile needs to know of its line
///     int lines() const;                          // lines captured: rows or tokens, times tables
///     line load(int index) const;                 // from device memory; columns 0 where nothing is written
///     // may be left out: what a thread can compute of its block's first line before anything may be read, with
///     // `bits()`, all of it in one number
///     template <class Team> place place_of(const Team&, int index) const;
///     line load(int index, const place&) const;
///     int least_columns() const;                  // a multiple of 128 worth a block's while
///     static constexpr bool small = true;         // may be left out: needs 64 registers at most
///     int head_blocks() const;  // may be left out: blocks a multiprocessor for heads, if a column is many stores
///     template <class Team>
///     void tile(Team&, int index, const line&, std::int32_t begin, std::int32_t end) const;
///   };
///
/// A line is whatever has columns of its own: one row of one table, say. Several tables of a row whose
/// columns agree share a line and its loads; tables of other widths have lines of their own (`index` then
/// names table and row). `load` must not report faults: many teams call it. Every other member is called once
/// for its part of the work.
///
/// A team is the threads that work on one piece: a block on the GPU, one thread on the host. It has `rank()`,
/// `size()`, `sync()` and sums; all threads of a team take the same way to the last two.
/// Loops over a team are written `for (i = rank; i < end; i += size)`.
///
/// On the GPU the grid is sized by the device and the batch, never by the captured width ("own row first,
/// then help"): block 0 makes the vectors, the others begin with the head of a line of their own, as many
/// blocks a line as there are, and end with it unless the line is longer. What is left of longer lines is
/// shared out evenly among the blocks that began with those lines and a few more that do nothing else.
namespace stepgraph {

/// A team of one: the host's.
class host_team {
 public:
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  static void sync() {}

  struct sum {
    std::int64_t before;
    std::int64_t total;
  };
  /// Sum of `value` over lower ranks, and over all; every thread of the team calls it.
  static sum exclusive_sum(std::int64_t value) { return {0, value}; }
  /// The same of two numbers at the price of one.
  struct sums {
    sum first, second;
  };
  static sums exclusive_sums(std::int64_t a, std::int64_t b) { return {{0, a}, {0, b}}; }
  /// Sum of `value`, in [0, 2^54), over all.
  static std::int64_t sum_of(std::int64_t value) { return value; }
  /// visit(item, k) for k in [0, count) of the items of the first `items` threads: `lanes` threads beside each other
  /// take the k of one item, so that what they write lies beside each other. Every thread of the team calls it, and a
  /// sum or a sync() lies between two calls.
  template <int lanes, class Item, class Visit>
  static void spread(int items, const Item& item, std::int32_t count, const Visit& visit) {
    for (std::int32_t k = 0; items > 0 && k < count; ++k) visit(item, k);
  }
};

template <class Op>
void run_tiles_host(const Op& op) {
  host_team team;
  op.vectors(team);
  if constexpr (Op::tile_columns > 0) {
    const int lines = op.lines();
    std::int64_t work = 0;
    for (int index = 0; index < lines; ++index) work += op.load(index).columns;
    const auto do_lines = [&op](std::int64_t first, std::int64_t last) {
      host_team mine;
      for (auto index = static_cast<int>(first); index < last; ++index)
        if (const auto line = op.load(index); line.columns > 0) op.tile(mine, index, line, 0, line.columns);
    };
    // short work is done before another thread would have woken
    constexpr std::int64_t worth_threads = 1 << 16;
    if (work < worth_threads)
      do_lines(0, lines);
    else
      thread_pool::shared().parallel_for(lines, 1, do_lines);
  }
}

/// What a launch of the driver looks like on a GPU: block 0, then `heads` blocks, 2^parts_shift beside each
/// other for a line, then helpers.
struct tile_grid {
  std::int32_t heads = 0;
  std::int32_t parts_shift = 0;
  std::int32_t helpers = 0;
  bool lets_in_late = false;  // the successor is let in as blocks end, not when they begin
};

/// The grid of a GPU: sized by lines and multiprocessors alone. `least_columns`: the op's; `resident`: its
/// blocks that fit on a multiprocessor; `head_blocks`: those of them that heads of 16-byte copies may fill.
tile_grid grid_for(int lines, int least_columns, int resident, int head_blocks, int multiprocessors);

/// Launches `op` on a CUDA stream; tile_driver.cuh defines it and the op's .cu file instantiates it.
template <class Op>
void launch_tiles_cuda(stream_ref at, const Op& op);

/// Enqueues `op` on `at`, whichever backend that is.
template <class Op>
void launch_tiles(stream_ref at, const Op& op) {
  if (at.is_host()) {
    detail::note_kernel(Op::name, reinterpret_cast<const void*>(&run_tiles_host<Op>));
    return enqueue_host(at, Op::name, [op] { run_tiles_host(op); });
  }
#if STEPGRAPH_CUDA
  launch_tiles_cuda(at, op);
#else
  throw cuda_error(message(Op::name, ": this stepgraph was built without CUDA"), 0);
#endif
}

}  // namespace stepgraph
