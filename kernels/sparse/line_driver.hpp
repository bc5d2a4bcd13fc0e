#pragma once

#include <cstdint>

#include "graphs/error.hpp"
#include "graphs/stream.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/guard.hpp"
#include "kernels/kernel_registry.hpp"

/// A second, simpler driver, for ops whose lines are tokens, all of the same columns: top-k indices, say. The
/// tile driver balances lines of different lengths and pays for it with a barrier and a second reading of the
/// lengths before the work; here all live lines cost the same, so a team takes a line, and the next one as
/// many teams further on. An op:
///
///   struct my_op {
///     static constexpr const char* name = "my_op";
///     static constexpr bool warp_a_line = true;  // else a block
///     static constexpr int threads = 128;        // of a block
///     static constexpr int least_blocks = 8;     // a multiprocessor must hold, of that many threads
///     static constexpr int blocks_a_multiprocessor = 16;  // of a grid, at most
///     static constexpr int room = 0;             // entries of a table's line that a block can hold
///     static constexpr bool has_vectors = true;
///     static constexpr bool one_line_first = true;  // may be left out: most teams have one live line or none, and
///                                                   // dead ones leave nothing: a shorter path, `state.live` unclamped
///     int lines() const;    // captured
///     int columns() const;  // about, of a line: what makes other threads worth waking on the host
///     template <class Team> state begin(Team&) const;  // once a team; `state.live` lines are live
///     template <class Team> place place_of(Team&, int index) const;  // what does not hang on its being live
///     template <class Team> void line(Team&, const state&, int index, const place&) const;  // a live line
///     template <class Team> void dead(Team&, int index) const;                // a dead one's fixed-size part
///     template <class Team> void vectors(Team&) const;                        // by one team, if has_vectors
///   };
///
/// Teams here have `rank()`, `size()`, `sum(value)`, `maximum(value)` and `hold(...)`; all threads of a team
/// take the same way to the last three.
namespace stepgraph {

/// A team of one: the host's.
class lone_team {
 public:
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  static std::int32_t sum(std::int32_t value) { return value; }
  static std::int32_t maximum(std::int32_t value) { return value; }
  static bool hold(const std::int32_t*, std::int64_t, std::int64_t) { return false; }
  static std::int32_t held(std::int32_t) { return 0; }
};

template <class Op>
void run_lines_host(const Op& op) {
  lone_team team;
  if constexpr (Op::has_vectors) op.vectors(team);
  const auto state = op.begin(team);
  const auto do_lines = [&op, &state](std::int64_t first, std::int64_t last) {
    lone_team mine;
    for (auto index = static_cast<int>(first); index < last; ++index)
      if (index < state.live)
        op.line(mine, state, index, op.place_of(mine, index));
      else
        op.dead(mine, index);
  };
  // short work is done before another thread would have woken
  constexpr std::int64_t worth_threads = 1 << 16;
  if (std::int64_t{state.live} * op.columns() < worth_threads)
    do_lines(0, op.lines());
  else
    thread_pool::shared().parallel_for(op.lines(), 1, do_lines);
}

/// Launches `op` on a CUDA stream; line_driver.cuh defines it and the op's .cu file instantiates it.
template <class Op>
void launch_lines_cuda(stream_ref at, const Op& op);

/// Enqueues `op` on `at`, whichever backend that is.
template <class Op>
void launch_lines(stream_ref at, const Op& op) {
  if (at.is_host()) {
    detail::note_kernel(Op::name, reinterpret_cast<const void*>(&run_lines_host<Op>));
    return enqueue_host(at, Op::name, [op] { run_lines_host(op); });
  }
#if STEPGRAPH_CUDA
  launch_lines_cuda(at, op);
#else
  throw cuda_error(message(Op::name, ": this stepgraph was built without CUDA"), 0);
#endif
}

}  // namespace stepgraph
