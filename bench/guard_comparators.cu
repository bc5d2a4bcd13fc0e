#include "bench/guard_comparators.hpp"
#include "kernels/metadata/decode_metadata_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph::bench {
namespace {

constexpr int block_columns = 1024;

__device__ void column_block(const plain_decode_metadata_op& op, int row, std::int64_t block,
                             std::int64_t columns) {
  const auto request = op.p.requests[row];
  const std::int64_t end = min((block + 1) * block_columns, columns);
  for (std::int64_t x = block * block_columns + threadIdx.x; x < end; x += blockDim.x)
    op.p.page_table[row * op.p.page_table_stride + x] =
        static_cast<std::int32_t>(op.p.source.page(request, x));
}

__device__ void vectors(const plain_decode_metadata_op& op) {
  __shared__ block_team::storage storage;
  block_team team(storage);
  op.vectors(team);
}

// grid: (column blocks of the captured width, rows + 1); every block computes its columns
__global__ void full_width(const __grid_constant__ plain_decode_metadata_op op) {
  if (blockIdx.y == 0) {
    if (blockIdx.x == 0) vectors(op);
    return;
  }
  column_block(op, static_cast<int>(blockIdx.y) - 1, blockIdx.x, op.p.page_columns);
}

// the same grid; a block whose columns are dead ends
__global__ void early_exit(const __grid_constant__ plain_decode_metadata_op op) {
  if (blockIdx.y == 0) {
    if (blockIdx.x == 0) vectors(op);
    return;
  }
  const int row = static_cast<int>(blockIdx.y) - 1;
  const std::int64_t live = pages_of(op.p.lengths.length(row), op.p.source.page_shift);
  if (std::int64_t{blockIdx.x} * block_columns < live) column_block(op, row, blockIdx.x, live);
}

// grid: 8192, or fewer where there are fewer column blocks; each walks the captured column blocks of all rows
__global__ void bounded_grid(const __grid_constant__ plain_decode_metadata_op op) {
  if (blockIdx.x == 0) vectors(op);
  const std::int64_t blocks_a_row = (op.p.page_columns + block_columns - 1) / block_columns;
  for (std::int64_t i = blockIdx.x; i < blocks_a_row * op.p.lengths.rows; i += gridDim.x) {
    const int row = static_cast<int>(i / blocks_a_row);
    const std::int64_t live = pages_of(op.p.lengths.length(row), op.p.source.page_shift);
    if (i % blocks_a_row * block_columns < live) column_block(op, row, i % blocks_a_row, live);
  }
}

// grid: rows + 1; a block walks its row
__global__ void block_a_row(const __grid_constant__ plain_decode_metadata_op op) {
  if (blockIdx.x == 0) return vectors(op);
  const int row = static_cast<int>(blockIdx.x) - 1;
  const std::int64_t live = pages_of(op.p.lengths.length(row), op.p.source.page_shift);
  for (std::int64_t block = 0; block * block_columns < live; ++block) column_block(op, row, block, live);
}

// stepgraph's grid and heads, without help: what the driver's second half costs rows that have no need of it
__global__ void __launch_bounds__(tile_threads, 4)
    heads_only(const __grid_constant__ plain_decode_metadata_op op) {
  wait_for_predecessor();
  if (blockIdx.x == 0) {
    if (blockIdx.y == 0) vectors(op);
    return;
  }
  __shared__ block_team::storage storage;
  block_team team(storage);
  const int row = static_cast<int>(blockIdx.x) - 1;
  const page_line line = op.load(row);
  const int head = head_columns(line.columns, op.least_columns(), 2 * op.tile_columns);
  const int begin = min(static_cast<int>(blockIdx.y) * head, line.columns),
            end = min(begin + head, line.columns);
  if (begin < end) op.tile(team, row, line, begin, end);
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

// heads of 16 KiB or of four gathers a thread, where stepgraph's own are a quarter of that
struct large_heads_op : plain_decode_metadata_op {
  __host__ __device__ __forceinline__ int least_columns() const {
    return 4 * plain_decode_metadata_op::least_columns();
  }
};

struct unguarded_op : plain_decode_metadata_op {
  __host__ __device__ __forceinline__ line load(int row) const {
    const auto columns = static_cast<std::int32_t>(p.page_columns);
    return {columns, columns, p.source.line(p.requests[row])};
  }
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
  const plain_decode_metadata_op op{params};
  const auto column_blocks = static_cast<unsigned>((params.page_columns + block_columns - 1) / block_columns);
  const auto rows = static_cast<unsigned>(params.lengths.rows);
  const dim3 block(tile_threads);
  switch (policy) {
    case guard_policy::full_width:
      return launch(at, "full_width", full_width, dim3(column_blocks, rows + 1), block, op, 0, false);
    case guard_policy::early_exit:
      return launch(at, "early_exit", early_exit, dim3(column_blocks, rows + 1), block, op, 0, false);
    case guard_policy::bounded_grid:
      return launch(at, "bounded_grid", bounded_grid, dim3(std::min(8192u, column_blocks * rows)), block, op,
                    0, false);
    case guard_policy::block_a_row:
      return launch(at, "block_a_row", block_a_row, dim3(rows + 1), block, op, 0, false);
  }
}

void decode_shaped(stream_ref at, const decode_metadata_params& params, const kernel_shape& shape) {
  const auto run = [&](const auto& op, auto* kernel) {
    const tile_grid grid = grid_for(op.lines(), at.where().multiprocessors(), shape.blocks_a_multiprocessor);
    launch(at, op.name, kernel, dim3(grid.x, grid.parts), dim3(tile_threads), op, 0, shape.programmatic);
  };
  const plain_decode_metadata_op op{params};
  const large_heads_op large{{params}};
  if (shape.large_heads)
    run(large, shape.early_trigger ? run_tiles<large_heads_op, true> : run_tiles<large_heads_op>);
  else
    run(op, shape.early_trigger ? run_tiles<plain_decode_metadata_op, true>
                                : run_tiles<plain_decode_metadata_op>);
}

void decode_heads_only(stream_ref at, const decode_metadata_params& params) {
  const plain_decode_metadata_op op{params};
  const tile_grid shape = grid_for(op.lines(), at.where().multiprocessors());
  launch(at, "heads_only", heads_only, dim3(shape.x, shape.parts), dim3(tile_threads), op);
}

void decode_chain_only(stream_ref at, const decode_metadata_params& params) {
  const plain_decode_metadata_op op{params};
  const tile_grid shape = grid_for(op.lines(), at.where().multiprocessors());
  launch(at, "chain_only", chain_only, dim3(shape.x, shape.parts), dim3(tile_threads), op);
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
