#pragma once

#include <algorithm>

#include "kernels/launch.cuh"
#include "kernels/sparse/index_k_cache_op.hpp"
#include "kernels/sparse/l2_share.cuh"

/// The index-K gather's own launch. Its output is packed, so all live tokens of a batch are one range that
/// can be cut into equal parts: no row needs a block of its own and none is longer than the others. A warp
/// does all of it alone, with no barrier: it sums the lengths of the rows in its registers, then moves its
/// parts. The tile driver would sum the lengths once more for each tile, and wait for the slowest warp.
namespace stepgraph {

/// `in_flight_`: pieces of 16 bytes that a thread has under way.
template <int threads_, int in_flight_, int blocks_a_multiprocessor_, reuse again_ = reuse::both,
          bool ahead_ = true>
struct gather_shape {
  static constexpr bool ahead = ahead_;
  static constexpr int threads = threads_, in_flight = in_flight_;
  static constexpr int blocks_a_multiprocessor = blocks_a_multiprocessor_;
  static constexpr reuse again = again_;
  static constexpr int tokens = 32 / key_piece::a_key * in_flight;  // of a part, a warp's
  static_assert(tokens <= 32, "a lane looks up one token");
};

struct gather_warp {
  __device__ static int rank() { return static_cast<int>(threadIdx.x) & 31; }
  __device__ static constexpr int size() { return 32; }
  __device__ static host_team::sum exclusive_sum(std::int64_t value) {
    std::int64_t sum = value;
    for (int step = 1; step < 32; step *= 2) {
      const std::int64_t lower = __shfl_up_sync(~0u, sum, step);
      if (rank() >= step) sum += lower;
    }
    return {sum - value, __shfl_sync(~0u, sum, 31)};
  }
};

/// Where the tokens of 128 rows end among the packed rows, four rows a lane, cut off at the capacity.
class packed_ends {
 public:
  static constexpr int a_lane = 4, rows = 32 * a_lane;

  /// Rows from `base` on, of which the first begins at packed row `before`.
  __device__ packed_ends(const get_k_and_s_params& p, int base, std::int32_t before) : before_(before) {
    const int first = base + a_lane * gather_warp::rank(), last = p.lengths.rows - 1;
    const auto most = static_cast<std::uint32_t>(p.capacity);
    // note: read by words and with no branch, so that all lengths are under way before the first is used
    const auto* const words = static_cast<const std::int32_t*>(p.lengths.seq_lens.data);
    const bool wide = p.lengths.seq_lens.wide;
    std::int32_t low[a_lane], high[a_lane], delta[a_lane];
#pragma unroll
    for (int i = 0; i < a_lane; ++i) {
      const std::int64_t row = first + i < last ? first + i : last;
      low[i] = words[wide ? 2 * row : row];
      high[i] = wide ? words[2 * row + 1] : 0;
      delta[i] = p.lengths.delta_by_row ? p.lengths.delta_by_row[row] : 0;
    }
    const int live = p.lengths.live();
    std::uint32_t length[a_lane];
#pragma unroll
    for (int i = 0; i < a_lane; ++i) {
      const std::int64_t given =
          wide ? std::int64_t{high[i]} << 32 | static_cast<std::uint32_t>(low[i]) : std::int64_t{low[i]};
      std::int64_t tokens = given + p.lengths.delta + delta[i];
      tokens = tokens < 0 ? 0 : tokens > p.lengths.cap ? p.lengths.cap : tokens;
      length[i] = first + i >= live ? 0 : tokens < p.capacity ? static_cast<std::uint32_t>(tokens) : most;
    }
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < a_lane; ++i) {
      sum = min(sum + length[i], most);
      end_[i] = static_cast<std::int32_t>(sum);
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t lower = __shfl_up_sync(~0u, sum, step);
      if (gather_warp::rank() >= step) sum = min(sum + lower, most);
    }
    std::uint32_t begin = __shfl_up_sync(~0u, sum, 1);
    if (gather_warp::rank() == 0) begin = 0;
    begin = min(begin + static_cast<std::uint32_t>(before), most);
#pragma unroll
    for (int i = 0; i < a_lane; ++i)
      end_[i] = static_cast<std::int32_t>(min(begin + static_cast<std::uint32_t>(end_[i]), most));
  }

  __device__ std::int32_t last() const {
    return __shfl_sync(~0u, end_[a_lane - 1], 31);
  }

  /// The row of these that holds the packed row, the same for the whole warp, and that row's range.
  struct range {
    int row;
    std::int32_t begin, end;
  };
  __device__ range find(std::int32_t packed) const {
    const int lane = __popc(__ballot_sync(~0u, end_[a_lane - 1] <= packed));
    const std::int32_t before_lane = __shfl_sync(~0u, end_[a_lane - 1], lane > 0 ? lane - 1 : 0);
    range found{lane * a_lane, lane > 0 ? before_lane : before_, 0};
#pragma unroll
    for (int i = 0; i < a_lane; ++i) {
      const std::int32_t end = __shfl_sync(~0u, end_[i], lane);
      if (i > 0 && found.end <= packed) {
        ++found.row;
        found.begin = found.end;
        found.end = end;
      }
      if (i == 0) found.end = end;
    }
    return found;
  }

 private:
  std::int32_t before_;
  std::int32_t end_[a_lane];
};

/// The place of ascending packed rows: that of the row at hand, as long as all lanes ask for its tokens.
struct packed_place {
  const packed_ends& ends;
  int base;
  packed_ends::range at;

  __device__ get_k_and_s_op::place operator()(std::int32_t packed) {
    get_k_and_s_op::place found{base + at.row, packed - at.begin};
    bool past = packed >= at.end;
    while (__any_sync(~0u, past)) {
      at = ends.find(at.end);
      if (past) found = {base + at.row, packed - at.begin};
      past = packed >= at.end;
    }
    return found;
  }
};

/// A part of one warp: packed rows [begin, begin + tokens); of its token `lane`, where that lies.
struct gather_part {
  std::int32_t begin, tokens;
  get_k_and_s_op::place of;
  std::int32_t entry;  // of the page table

  __device__ gather_part(const get_k_and_s_op& op, std::int32_t first, std::int32_t stop, packed_place where)
      : begin(first),
        tokens(stop - first),
        of(where(first + min(gather_warp::rank(), stop - first - 1))),
        entry(op.entry_of(of)) {}
};

/// The pieces [first, first + count) of a lane, of the packed rows [begin, begin + tokens): loaded together, then
/// stored; `between` the two. `from`: where the key of token `lane` lies, or -1.
template <int count, bool wide, bool some_bad, reuse again, class Between>
__device__ __forceinline__ void move_pieces(const get_k_and_s_params& p, int first, std::int32_t begin,
                                            int tokens, std::int64_t from, const Between& between) {
  const int lane = gather_warp::rank();
  const auto of_token = [&](int k) { return lane / key_piece::a_key + 32 / key_piece::a_key * (first + k); };
  const std::uint8_t* const piece = p.cache.data + lane % key_piece::a_key * key_piece::bytes;
  quad key[count];
#pragma unroll
  for (int k = 0; k < count; ++k) {
    const std::int64_t there = __shfl_sync(~0u, from, of_token(k));
    if (some_bad) key[k] = {};
    if (!some_bad || there >= 0) key[k] = key_piece::load<wide, again>(piece + there);
  }
  between();
  const bool stays = begin < p.kept;
  std::uint8_t* const to =
      p.keys + std::int64_t{begin} * index_k_cache::key_bytes + (lane + 32 * first) * key_piece::bytes;
#pragma unroll
  for (int k = 0; k < count; ++k)
    if (of_token(k) < tokens) store_quad_if_stays(stays, to + 32 * k * key_piece::bytes, key[k]);
}

/// Moves a part. A lane has found the place and the page of one token and hands them to the lanes that move its
/// key: a page is looked up once, and the path is the same for tokens of one row and of many. `between` loads and
/// stores the next part may be looked up.
template <class Shape, class Between>
__device__ __forceinline__ void move_part(const get_k_and_s_op& op, bool wide, const gather_part& part,
                                          const Between& between) {
  const get_k_and_s_params& p = op.p;
  const int lane = gather_warp::rank();
  const auto from = op.bytes_of(part.of, part.entry, lane < part.tokens);
  std::uint32_t scale = 0;
  if (p.scales && from.scale >= 0) scale = *reinterpret_cast<const std::uint32_t*>(p.cache.data + from.scale);
  const std::int32_t begin = part.begin;
  const int tokens = part.tokens;
  if (p.keys && wide && !__any_sync(~0u, from.key < 0)) {
    move_pieces<Shape::in_flight, true, false, Shape::again>(p, 0, begin, tokens, from.key, between);
  } else {
    if (p.keys) {  // a bad page, or a cache that only 4 bytes are aligned to: shorter code, not faster
#pragma unroll 1
      for (int first = 0; first < Shape::in_flight; first += 2)
        move_pieces<2, false, true, Shape::again>(p, first, begin, tokens, from.key, [] {});
    }
    between();
  }
  if (p.scales && lane < tokens) p.scales[begin + lane] = scale;
}

// grid: a few blocks a multiprocessor, no more than the captured tokens have parts
// every warp sums the lengths of all rows, then moves every so-manieth part of the live packed rows; the last
// warp writes the sums instead
template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_a_multiprocessor)
    run_gather(const __grid_constant__ get_k_and_s_op op) {
  wait_for_predecessor();
  constexpr int warps_a_block = Shape::threads / 32;
  const std::int64_t warps = std::int64_t{gridDim.x} * warps_a_block - 1;
  std::int64_t part = std::int64_t{blockIdx.x} * warps_a_block + static_cast<int>(threadIdx.x) / 32;
  gather_warp team;
  if (part == warps) return op.vectors(team);
  const bool wide = moves_wide(op.p.cache);
  std::int32_t before = 0;
  for (int base = 0; base < op.p.lengths.rows; base += packed_ends::rows) {
    const packed_ends ends(op.p, base, before);
    const std::int32_t end = ends.last();
    const auto look_up = [&](std::int64_t index) {
      const std::int64_t from = index * Shape::tokens, to = from + Shape::tokens;
      const auto begin = static_cast<std::int32_t>(from > before ? from : before);
      return gather_part(op, begin, static_cast<std::int32_t>(to < end ? to : end),
                         {ends, base, ends.find(begin)});
    };
    // note: a part that begins at the end of these rows, or passes it, is the next rows' too
    if (end > before && part * Shape::tokens < end) {
      gather_part now = look_up(part);
      for (bool more = true; more;) {
        const bool passes = (part + 1) * Shape::tokens > end;
        more = !passes && (part + warps) * Shape::tokens < end;
        gather_part next = now;
        move_part<Shape>(op, wide, now, [&] {
          if (Shape::ahead && more) next = look_up(part + warps);
        });
        if (!passes) part += warps;
        now = Shape::ahead || !more ? next : look_up(part);
      }
    }
    before = end;
  }
}

template <class Shape>
void launch_gather(stream_ref at, get_k_and_s_op op) {
  if (op.p.kept < 0) op.p.kept = lines_that_stay(at, index_k_cache::key_bytes);
  constexpr int tokens_a_block = Shape::tokens * Shape::threads / 32;
  const std::int64_t captured = std::min(op.p.capacity, op.p.lengths.rows * op.p.lengths.cap);
  const std::int64_t parts = (captured + Shape::tokens + tokens_a_block - 1) / tokens_a_block;
  const std::int64_t most = std::int64_t{Shape::blocks_a_multiprocessor} * at.where().multiprocessors();
  launch<get_k_and_s_op>(at, get_k_and_s_op::name, run_gather<Shape>,
                         dim3(static_cast<unsigned>(std::max<std::int64_t>(2, std::min(parts, most)))),
                         dim3(Shape::threads), op);
}

}  // namespace stepgraph
