#pragma once

#include <utility>

#include "kernels/block_team.cuh"
#include "kernels/launch.cuh"
#include "kernels/settled.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Whether an op takes so few registers that four of its blocks fill a multiprocessor, the next kernel's two
/// beside this one's.
template <class Op>
constexpr bool is_small = false;
template <class Op>
requires(Op::small) constexpr bool is_small<Op> = true;
template <class Op>
constexpr int min_blocks = is_small<Op> ? 4 : 2;

/// Blocks a multiprocessor that heads of 16-byte copies may fill.
template <class Op>
int head_blocks(const Op& op) {
  if constexpr (requires { op.head_blocks(); }) return op.head_blocks();
  return 1;
}

template <class Op>
struct tile_params {
  Op op;
  tile_grid grid;
};

/// Columns of the head that each of a line's blocks begins with: the line in equal parts, unless that is too
/// little for a block or more than `most`. Multiples of 128, which keep accesses aligned.
__device__ __forceinline__ std::int32_t head_columns(std::int32_t columns, int parts_shift,
                                                     std::int32_t least, std::int32_t most) {
  const std::int32_t even = (((columns + (1 << parts_shift) - 1) >> parts_shift) + 127) & ~127;
  return even < least ? least : even < most ? even : most;
}

/// Whether an op knows of a line what may be computed before anything is read, or of its vectors.
template <class Op>
concept has_places = requires(const Op& op, const block_team& team) {
  op.place_of(team, 0).bits();
};
template <class Op>
concept has_vectors_place = requires(const Op& op, block_team& team) {
  op.vectors_place(team);
};
struct no_place {};
template <class Op>
struct place_of_op_as {
  using type = no_place;
};
template <has_places Op>
struct place_of_op_as<Op> {
  using type = decltype(std::declval<const Op&>().place_of(std::declval<const block_team&>(), 0));
};
template <class Op>
using place_of_op = typename place_of_op_as<Op>::type;

/// What a block keeps of the lines whose rest it shares in.
template <class Op>
struct shared_lines {
  typename Op::line line[tile_threads];
  std::int64_t first[tile_threads];  // unit of the line, among those left of this round
};

/// Hands a block its pieces one after another: the head of its own line (of each of its lines, where these are
/// very many), then, if it `shares()`, that is if the line is longer than its heads or the block is a helper, a
/// range of all that is left, laid end to end. The ranges are of equal length, heads counted in. All threads ask
/// together and get the same answer; a block of a short line asks nothing of others.
template <class Op>
class tile_queue {
 public:
  __device__ tile_queue(const tile_params<Op>& p, block_team& team, shared_lines<Op>& shared)
      : op_(p.op), grid_(p.grid), team_(team), shared_(shared), lines_(p.op.lines()) {
    const int head = static_cast<int>(blockIdx.x) - 1;
    is_part_ = head < grid_.heads;
    rank_ = settled(is_part_ ? head & ((1 << grid_.parts_shift) - 1) : head - grid_.heads);
    own_ = settled(is_part_ ? head >> grid_.parts_shift : lines_);
    if constexpr (has_places<Op>) place_ = op_.place_of(team, own_ < lines_ ? own_ : 0);
  }

  int index;
  typename Op::line line;
  std::int32_t begin, end;

  __device__ bool next() { return next_head() || (shares() && next_share()); }
  __device__ bool next_head() {
    while (has_head()) {
      load_head();
      advance();
      if (begin < end) return true;
    }
    return false;
  }

  /// Whether a line of its own is left, its head, and the way to the next.
  __device__ bool has_head() const { return own_ < lines_; }
  __device__ void load_head() {
    index = own_;
    if constexpr (has_places<Op>)
      line = op_.load(own_, place_);
    else
      line = op_.load(own_);
    const std::int32_t each = head(line);  // heads of a line together: some millions of columns at most
    longer_ = each << grid_.parts_shift < line.columns && parts_help();
    begin = min(rank_ * each, line.columns);
    end = min(rank_ * each + each, line.columns);
  }
  __device__ void advance() {
    own_ += grid_.heads >> grid_.parts_shift;
    if constexpr (has_places<Op>)
      if (has_head()) place_ = op_.place_of(team_, own_);
  }
  /// What is known of the first line of its own.
  __device__ const auto& place() const { return place_; }

  __device__ bool shares() const { return !is_part_ || longer_; }

  __device__ bool next_share() {
    while (from_ >= to_)
      if (!next_round()) return false;
    int low = 0;  // the last line whose first unit is not past the wanted one
#pragma unroll
    for (int step = tile_threads / 2; step > 0; step /= 2)
      if (first_unit(low + step) <= from_) low += step;
    index = base_ + low;
    line = shared_.line[low];
    const std::int64_t first = first_unit(low);
    const std::int64_t from = (head(line) << grid_.parts_shift) + (from_ - first) * unit;
    const std::int64_t to = from + (to_ - from_) * unit;
    begin = static_cast<std::int32_t>(from < line.columns ? from : line.columns);
    end = static_cast<std::int32_t>(to < line.columns ? to : line.columns);
    from_ += (end - begin + unit - 1) / unit;
    return true;
  }

 private:
  static constexpr std::int32_t unit = 128;  // columns
  static constexpr int count_shift = 40;     // of long lines, in sums of units

  /// Columns of a head: so many that a block which has them is worth no less than one that shares.
  __device__ std::int32_t most() const {
    return 16 * op_.least_columns();
  }
  /// ceil(a / b); units of all lines of a round fit 32 bits.
  __device__ static std::int64_t up(std::int64_t a, std::int32_t b) {
    return static_cast<std::uint32_t>(a + b - 1) / static_cast<std::uint32_t>(b);
  }
  __device__ std::int32_t head(const typename Op::line& of) const {
    return head_columns(of.columns, grid_.parts_shift, op_.least_columns(), most());
  }
  __device__ std::int64_t first_unit(int line) const {
    return shared_.first[line] & ((std::int64_t{1} << count_shift) - 1);
  }
  /// Blocks have one line each; where they have several, helpers do all the rest.
  __device__ bool parts_help() const {
    return lines_ <= grid_.heads >> grid_.parts_shift;
  }

  /// Scans the next lines, one a thread, and finds the block's range of what is left of them; false if there
  /// are none. A part's block shares in its own line's round alone.
  __device__ bool next_round() {
    if (is_part_ && base_ >= 0) return false;
    const int own = index;  // of a part
    base_ = is_part_ ? own & ~(tile_threads - 1) : base_ + tile_threads;
    if (base_ >= lines_) return false;
    const int other = base_ + static_cast<int>(threadIdx.x);
    const auto mine = op_.load(other < lines_ ? other : lines_ - 1);
    const std::int64_t rest = mine.columns - (head(mine) << grid_.parts_shift);
    const bool is_long = other < lines_ && rest > 0;
    if (!__syncthreads_or(is_long)) return true;
    const auto sum =
        team_.exclusive_sum(is_long ? (rest + unit - 1) / unit | std::int64_t{1} << count_shift : 0);
    shared_.first[threadIdx.x] = sum.before;
    shared_.line[threadIdx.x] = mine;
    __syncthreads();
    const std::int64_t total = sum.total & ((std::int64_t{1} << count_shift) - 1);
    const auto parts = static_cast<std::int32_t>(parts_help() ? sum.total >> count_shift : 0)
                       << grid_.parts_shift;
    const std::int64_t had = most() / unit;
    const std::int64_t least = op_.least_columns() / unit;
    std::int64_t share = up(total, grid_.helpers);
    if (share > had && parts > 0) share = up(total + parts * had, grid_.helpers + parts);
    if (share < least) share = least;
    from_ = rank_ * share;
    if (is_part_) {
      const std::int64_t before = ((shared_.first[own - base_] >> count_shift) << grid_.parts_shift) + rank_;
      from_ = grid_.helpers * share;
      share = share > had ? share - had : 0;
      from_ += before * share;
    }
    to_ = from_ + share < total ? from_ + share : total;
    return true;
  }

  const Op& op_;
  const tile_grid& grid_;
  block_team& team_;
  shared_lines<Op>& shared_;
  [[no_unique_address]] place_of_op<Op> place_;  // of the first line of its own
  int lines_;
  bool is_part_, longer_ = false;
  int rank_;                        // among the line's parts, or among the helpers
  int own_;                         // next line of its own
  int base_ = -tile_threads;        // first line of this round
  std::int64_t from_ = 0, to_ = 0;  // units of this round that are the block's
};

/// Brings a kernel's parameters into the constant cache, which costs a latency for every 64 bytes: before the
/// wait for the predecessor that is free. `known`: what has been computed from them by then and is not to be computed
/// later. `unused`: 4 bytes of shared memory that nothing has been written to yet.
template <class Params, class Known>
__device__ __forceinline__ void touch(const Params& params, const Known& known, void* unused) {
  const auto* const words = reinterpret_cast<const std::int32_t*>(&params);
  constexpr int count = sizeof(Params) / 4;
  std::int32_t all = words[count - 1];
#pragma unroll
  for (int i = 0; i < count; i += 16) all |= words[i];
  if constexpr (requires { known.bits(); })
    all |= static_cast<std::int32_t>(known.bits() >> 32) | static_cast<std::int32_t>(known.bits());
  // a use that the compiler must believe in, that does no harm, and that no branch is made for
  asm volatile(
      "{ .reg .pred rare; setp.eq.s32 rare, %0, 0x7ffffffe; @rare st.shared.s32 [%1], %0; }" ::"r"(all),
      "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(unused))));
}

// grid: 1 + heads + helpers; one block for an op of vectors alone
// block 0 makes the vectors; block 1 + (line << parts_shift) + part that head of the line, and ends unless the
// line is longer; helpers, few, and the blocks of longer lines share what is left
template <class Op>
__global__ void __launch_bounds__(tile_threads, min_blocks<Op>)
    run_tiles(const __grid_constant__ tile_params<Op> p) {
  __shared__ block_team::storage scan_storage;
  block_team team(scan_storage);
  // the wait for the predecessor, and the successor is let in
  const auto begin = [late = settled(std::int32_t{p.grid.lets_in_late})] {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    if (!late) cudaTriggerProgrammaticLaunchCompletion();
#endif
  };
  if constexpr (has_vectors_place<Op>) {
    static_assert(Op::tile_columns == 0);
    const auto place = p.op.vectors_place(team);
    touch(p, place, &scan_storage);
    begin();
    if (blockIdx.x == 0) p.op.vectors(team, place);
  } else if constexpr (Op::tile_columns == 0) {
    touch(p, no_place{}, &scan_storage);
    begin();
    p.op.vectors(team);
  } else {
    __shared__ shared_lines<Op> shared;
    tile_queue<Op> queue(p, team, shared);
    touch(p, queue.place(), &scan_storage);
    begin();
    if (blockIdx.x == 0) return p.op.vectors(team);
    // note: a small op has two loops, so that the way of a short line is straight; a large one has one, as its
    // body would be there twice
    if constexpr (is_small<Op>) {
      for (; queue.has_head(); queue.advance()) {
        queue.load_head();
        if (queue.begin < queue.end) p.op.tile(team, queue.index, queue.line, queue.begin, queue.end);
      }
      if (!queue.shares()) return;
      while (queue.next_share()) p.op.tile(team, queue.index, queue.line, queue.begin, queue.end);
    } else {
      while (queue.next()) p.op.tile(team, queue.index, queue.line, queue.begin, queue.end);
    }
  }
}

template <class Op>
void launch_tiles_on(stream_ref at, const Op& op, const tile_grid& grid, bool programmatic = true) {
  launch(at, Op::name, run_tiles<Op>, dim3(1 + grid.heads + grid.helpers), dim3(tile_threads),
         tile_params<Op>{op, grid}, 0, programmatic);
}

template <class Op>
void launch_tiles_cuda(stream_ref at, const Op& op) {
  tile_grid grid;  // an op of vectors alone is one block
  if constexpr (Op::tile_columns > 0)
    grid = grid_for(op.lines(), op.least_columns(), min_blocks<Op>, head_blocks(op),
                    at.where().multiprocessors());
  launch_tiles_on(at, op, grid);
}

}  // namespace stepgraph
