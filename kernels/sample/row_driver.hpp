#pragma once

#include <cstdint>

#include "graphs/error.hpp"
#include "graphs/stream.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/sample/row_team.hpp"

/// The driver of ops that pass over lines of logits: one team a line.
///
///   struct my_op {
///     static constexpr const char* name = "my_op";
///     struct scratch {};                                   // what a team shares while it works on a line
///     int rows() const;                                    // captured
///     template <class Team> void row(Team&, scratch&, int row) const;
///   };
namespace stepgraph {

template <class Op>
void run_rows_host(const Op& op) {
  thread_pool::shared().parallel_for(op.rows(), 1, [&op](std::int64_t begin, std::int64_t end) {
    host_row_team team;
    typename Op::scratch scratch;
    for (std::int64_t row = begin; row < end; ++row) op.row(team, scratch, static_cast<int>(row));
  });
}

/// Launches `op` on a CUDA stream; row_driver.cuh defines it and the op's .cu file instantiates it.
template <class Op>
void launch_rows_cuda(stream_ref at, const Op& op);

/// Enqueues `op` on `at`, whichever backend that is: one launch.
template <class Op>
void launch_rows(stream_ref at, const Op& op) {
  if (at.is_host()) return enqueue_host(at, Op::name, [op] { run_rows_host(op); });
#if STEPGRAPH_CUDA
  launch_rows_cuda(at, op);
#else
  throw cuda_error(message(Op::name, ": this stepgraph was built without CUDA"), 0);
#endif
}

}  // namespace stepgraph
