#include "bench/guard_comparators.hpp"
#include "kernels/metadata/compressed_metadata_op.hpp"
#include "kernels/metadata/decode_metadata_op.hpp"
#include "kernels/metadata/draft_steps_metadata_op.hpp"
#include "kernels/metadata/plain_dsa_metadata_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph::bench {
namespace {

constexpr int block_columns = 1024;

/// Captured columns of a line.
__device__ std::int64_t captured(const plain_decode_metadata_op& op, int) {
  return op.p.page_columns;
}
__device__ std::int64_t captured(const draft_steps_metadata_op& op, int index) {
  return index < op.p.steps ? 1 : op.p.decode.page_columns;
}
__device__ std::int64_t captured(const compressed_metadata_op& op, int index) {
  return op.p.level[index / op.p.tokens].page_indices.columns;
}
__device__ std::int64_t captured(const plain_dsa_metadata_op& op, int) {
  return op.p.page_table_1 ? op.p.page_table_1.columns : op.p.real_page_table.columns;
}
__device__ std::int64_t captured(const dsa_metadata_op& op, int index) {
  const auto which = op.split(index);  // the row now
  return index < op.rows() ? op.sink(which).columns : 0;
}

template <class Op>
struct policy_params {
  Op op;
  std::int64_t width;  // captured columns of the widest line
};

template <class Op>
__device__ void column_block(block_team& team, const Op& op, int index, std::int64_t block) {
  const auto line = op.load(index);
  const std::int64_t begin = block * block_columns, end = begin + block_columns;
  if (begin < line.columns)
    op.tile(team, index, line, static_cast<std::int32_t>(begin),
            static_cast<std::int32_t>(end < line.columns ? end : line.columns));
}

// grid: (column blocks of the captured width, lines + 1); every block computes its columns
template <class Op>
__global__ void full_width(const __grid_constant__ policy_params<Op> p) {
  __shared__ block_team::storage storage;
  block_team team(storage);
  if (blockIdx.y == 0) {
    if (blockIdx.x == 0) p.op.vectors(team);
    return;
  }
  const int index = static_cast<int>(blockIdx.y) - 1;
  auto line = p.op.load(index);
  const std::int64_t columns = captured(p.op, index), begin = std::int64_t{blockIdx.x} * block_columns;
  line.columns = static_cast<std::int32_t>(columns);
  if constexpr (requires { line.live; }) line.live = line.columns;
  if (begin < columns)
    p.op.tile(team, index, line, static_cast<std::int32_t>(begin),
              static_cast<std::int32_t>(min(begin + block_columns, columns)));
}

// the same grid; a block whose columns are dead ends
template <class Op>
__global__ void early_exit(const __grid_constant__ policy_params<Op> p) {
  __shared__ block_team::storage storage;
  block_team team(storage);
  if (blockIdx.y == 0) {
    if (blockIdx.x == 0) p.op.vectors(team);
    return;
  }
  column_block(team, p.op, static_cast<int>(blockIdx.y) - 1, blockIdx.x);
}

// grid: 8192, or fewer where there are fewer column blocks; each walks the captured column blocks of all lines
template <class Op>
__global__ void bounded_grid(const __grid_constant__ policy_params<Op> p) {
  __shared__ block_team::storage storage;
  block_team team(storage);
  if (blockIdx.x == 0) p.op.vectors(team);
  const std::int64_t blocks_a_line = (p.width + block_columns - 1) / block_columns;
  for (std::int64_t i = blockIdx.x; i < blocks_a_line * p.op.lines(); i += gridDim.x)
    column_block(team, p.op, static_cast<int>(i / blocks_a_line), i % blocks_a_line);
}

// grid: lines + 1; a block walks its line
template <class Op>
__global__ void block_a_row(const __grid_constant__ policy_params<Op> p) {
  __shared__ block_team::storage storage;
  block_team team(storage);
  if (blockIdx.x == 0) return p.op.vectors(team);
  const int index = static_cast<int>(blockIdx.x) - 1;
  if (const auto line = p.op.load(index); line.columns > 0) p.op.tile(team, index, line, 0, line.columns);
}

template <class Op>
void run_by(guard_policy policy, stream_ref at, const Op& op, std::int64_t width) {
  const policy_params<Op> p{op, width};
  const auto column_blocks = static_cast<unsigned>((width + block_columns - 1) / block_columns);
  const auto lines = static_cast<unsigned>(op.lines());
  const dim3 block(tile_threads);
  switch (policy) {
    case guard_policy::full_width:
      return launch(at, "full_width", full_width<Op>, dim3(column_blocks, lines + 1), block, p, 0, false);
    case guard_policy::early_exit:
      return launch(at, "early_exit", early_exit<Op>, dim3(column_blocks, lines + 1), block, p, 0, false);
    case guard_policy::bounded_grid:
      return launch(at, "bounded_grid", bounded_grid<Op>, dim3(std::min(8192u, column_blocks * lines)), block,
                    p, 0, false);
    case guard_policy::block_a_row:
      return launch(at, "block_a_row", block_a_row<Op>, dim3(lines + 1), block, p, 0, false);
  }
}

// no more than the chain of loads that the definition asks for: a column a thread, no checks, no vectors
__global__ void chain_only(const __grid_constant__ plain_decode_metadata_op op) {
  wait_for_predecessor();
  const int row = static_cast<int>(blockIdx.x) - 1;
  if (row < 0) return;
  const auto length = static_cast<const std::int64_t*>(op.p.lengths.seq_lens.data)[row];
  const auto request = static_cast<const std::int64_t*>(op.p.requests.data)[row];
  const int shift = op.p.source.page_shift;
  const int pages = static_cast<int>((length + (1 << shift) - 1) >> shift);
  const std::int32_t* const from = op.p.source.table + request * op.p.source.row_stride;
  std::int32_t* const to = op.p.page_table + row * op.p.page_table_stride;
  const int step = blockDim.x * gridDim.y;
  for (int x = blockIdx.y * blockDim.x + threadIdx.x; x < pages; x += step)
    to[x] = from[static_cast<std::int64_t>(x) << shift] >> shift;
}

struct no_params {};
__global__ void empty(const no_params) {
  wait_for_predecessor();
}

struct copy_params {
  uint4* to;
  const uint4* from;
  std::int64_t count;
};
__global__ void copy(const __grid_constant__ copy_params p) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < p.count; i += 4 * step) {
    const uint4 a = p.from[i], b = p.from[i + step], c = p.from[i + 2 * step], d = p.from[i + 3 * step];
    p.to[i] = a;
    p.to[i + step] = b;
    p.to[i + 2 * step] = c;
    p.to[i + 3 * step] = d;
  }
  for (; i < p.count; i += step) p.to[i] = p.from[i];
}

tile_grid shaped(tile_grid grid, int lines, const kernel_shape& shape) {
  if (shape.head_blocks >= 0) {
    grid.parts_shift = 0;
    while (lines << (grid.parts_shift + 1) <= shape.head_blocks) ++grid.parts_shift;
    grid.heads = lines << grid.parts_shift;
  }
  if (shape.helpers >= 0) grid.helpers = shape.helpers;
  if (shape.lets_in_late >= 0) grid.lets_in_late = shape.lets_in_late != 0;
  return grid;
}

struct unguarded_op : plain_decode_metadata_op {
  __host__ __device__ __forceinline__ line load(int, const place& at) const {
    const auto columns = static_cast<std::int32_t>(p.page_columns);
    return {columns, true, settled(p.source.line(at.request.fetch())), at.to};
  }
  __host__ __device__ __forceinline__ line load(int row) const { return load(row, place_of(row)); }
};

}  // namespace

const char* to_string(guard_policy policy) {
  switch (policy) {
    case guard_policy::full_width:
      return "full width";
    case guard_policy::early_exit:
      return "early exit";
    case guard_policy::bounded_grid:
      return "bounded grid of 8192";
    case guard_policy::block_a_row:
      return "a block a row";
  }
  return "unknown";
}

void decode_by(guard_policy policy, stream_ref at, const decode_metadata_params& params) {
  run_by(policy, at, plain_decode_metadata_op{params}, params.page_columns);
}

void dsa_by(guard_policy policy, stream_ref at, const dsa_metadata_params& params) {
  const std::int64_t width = std::max(params.real_page_table.columns, params.page_table_1.columns);
  if (plain_dsa_metadata_op::serves(params))
    return run_by(policy, at, plain_dsa_metadata_op{{params}}, width);
  run_by(policy, at, dsa_metadata_op{params}, width);
}

void compressed_by(guard_policy policy, stream_ref at, const compressed_metadata_params& params) {
  std::int64_t width = 1;
  for (const compression_level& level : params.level) width = std::max(width, level.page_indices.columns);
  run_by(policy, at, compressed_metadata_op{params}, width);
}

void draft_steps_by(guard_policy policy, stream_ref at, draft_steps_metadata_params params) {
  params.decode.lengths.delta = params.steps;
  run_by(policy, at, draft_steps_metadata_op{params}, params.decode.page_columns);
}

void decode_shaped(stream_ref at, const decode_metadata_params& params, const kernel_shape& shape) {
  const plain_decode_metadata_op op{params};
  launch_tiles_on(at, op,
                  shaped(grid_for(op.lines(), op.least_columns(), min_blocks<plain_decode_metadata_op>, 1,
                                  at.where().multiprocessors()),
                         op.lines(), shape),
                  shape.programmatic);
}

void decode_chain_only(stream_ref at, const decode_metadata_params& params) {
  const plain_decode_metadata_op op{params};
  const tile_grid grid = grid_for(op.lines(), op.least_columns(), min_blocks<plain_decode_metadata_op>, 1,
                                  at.where().multiprocessors());
  launch(at, "chain_only", chain_only, dim3(op.lines() + 1, 1 << grid.parts_shift), dim3(tile_threads), op);
}

void decode_unguarded(stream_ref at, const decode_metadata_params& params) {
  launch_tiles_cuda(at, unguarded_op{{params}});
}

void empty_kernel(stream_ref at, int blocks, bool programmatic) {
  launch(at, "empty", empty, dim3(blocks), dim3(tile_threads), no_params{}, 0, programmatic);
}

void plain_copy(stream_ref at, void* to, const void* from, std::int64_t bytes) {
  launch(at, "copy", copy, dim3(8 * at.where().multiprocessors()), dim3(256),
         copy_params{static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes / 16}, 0, false);
}

}  // namespace stepgraph::bench
