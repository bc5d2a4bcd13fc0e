#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/sample/row_team.cuh"

namespace stepgraph {

// grid: captured lines
// a block does what the op does with its line; one of a dead line writes its fixed-size outputs and ends
template <class Op>
__global__ void __launch_bounds__(row_team_threads) run_rows(const __grid_constant__ Op op) {
  __shared__ block_row_team::storage storage;
  __shared__ typename Op::scratch scratch;
  wait_for_predecessor();
  block_row_team team(storage);
  op.row(team, scratch, static_cast<int>(blockIdx.x));
}

template <class Op>
void launch_rows_cuda(stream_ref at, const Op& op) {
  launch<Op>(at, Op::name, run_rows<Op>, dim3(op.rows()), dim3(row_team_threads), op);
}

}  // namespace stepgraph
