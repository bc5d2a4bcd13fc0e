#pragma once

#include <algorithm>

#include "kernels/launch.cuh"
#include "kernels/sparse/index_k_cache_op.hpp"
#include "kernels/sparse/l2_share.cuh"

/// The index-K gather's own launch. Its output is packed, so all live tokens of a batch are one range that
/// can be cut into equal parts: no row needs a block of its own and none is longer than the others. A warp
/// does all of it alone, with no barrier: it sums the lengths of the rows in its registers, then moves its
/// parts. The tile driver would sum the lengths once more for each tile, and wait for the slowest warp.
/// Only here are keys not moved by `get_k_and_s_op::move`.
namespace stepgraph {

/// `in_flight_`: pieces of 16 bytes that a thread has under way.
template <int threads_, int in_flight_, int blocks_a_multiprocessor_, reuse again_ = reuse::both>
struct gather_shape {
  static constexpr int threads = threads_, in_flight = in_flight_;
  static constexpr int blocks_a_multiprocessor = blocks_a_multiprocessor_;
  static constexpr reuse again = again_;
  static constexpr int tokens_at_once = 32 / key_piece::a_key;  // by a warp
  static constexpr int tokens = tokens_at_once * in_flight;     // of a part, a warp's
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
  __device__ static std::int64_t sum_of(std::int64_t value) { return exclusive_sum(value).total; }
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

// note: a lane looks up the page of one token and hands it to the lanes that move the token's key, so a page is
// looked up once and the path to a key is short

/// Moves the packed rows [begin, begin + Shape::tokens), all of row `at`, from pages as the table has them. False,
/// and nothing is moved, where one of these is bad.
template <class Shape>
__device__ __forceinline__ bool move_whole(const get_k_and_s_op& op, std::int32_t begin,
                                           const get_k_and_s_op::one_row& at) {
  const get_k_and_s_params& p = op.p;
  const int lane = gather_warp::rank(), own = min(lane, Shape::tokens - 1);
  const std::int32_t first = at(begin).token;
  const std::int32_t page = op.entry_of(at(begin + own));
  const bool stays = begin < p.kept;
  std::uint8_t* const to = p.keys + std::int64_t{begin} * index_k_cache::key_bytes + lane * key_piece::bytes;
  if (__any_sync(~0u, static_cast<std::uint32_t>(page) >= static_cast<std::uint32_t>(p.cache.pages)))
    return false;
  const std::uint8_t* const piece = p.cache.data + lane % key_piece::a_key * key_piece::bytes;
  quad key[Shape::in_flight];
#pragma unroll
  for (int k = 0; k < Shape::in_flight; ++k) {
    const int token = lane / key_piece::a_key + k * Shape::tokens_at_once;
    const std::int32_t its_page = __shfl_sync(~0u, page, token);
    key[k] = load_quad<Shape::again>(piece + op.key_byte(its_page, first + token));
  }
  const std::uint32_t scale =
      *reinterpret_cast<const std::uint32_t*>(p.cache.data + op.scale_byte(page, first + own));
  if (stays) {
#pragma unroll
    for (int k = 0; k < Shape::in_flight; ++k) store_quad(to + 32 * k * key_piece::bytes, key[k]);
  } else {
#pragma unroll
    for (int k = 0; k < Shape::in_flight; ++k)
      store_quad<reuse::neither>(to + 32 * k * key_piece::bytes, key[k]);
  }
  if (lane < Shape::tokens) p.scales[begin + lane] = scale;
  return true;
}

/// Moves packed rows [begin, stop), a part or less, whatever they are; the first of them lies in row `at`.
template <class Shape>
__device__ __noinline__ void move_any(const get_k_and_s_op& op, bool wide, std::int32_t begin,
                                      std::int32_t stop, const packed_ends ends, int base,
                                      packed_ends::range at) {
  const get_k_and_s_params& p = op.p;
  const int lane = gather_warp::rank(), tokens = stop - begin;
  packed_place where{ends, base, at};
  const get_k_and_s_op::place mine = where(begin + min(lane, tokens - 1));
  const std::int32_t page = op.page_of(mine, lane < tokens);
  if (p.keys) {
    constexpr int together = 4;
    const std::uint8_t* const piece = p.cache.data + lane % key_piece::a_key * key_piece::bytes;
    const std::int64_t from = page < 0 ? -1 : op.key_byte(page, mine.token);
    const bool stays = begin < p.kept;
#pragma unroll 1
    for (int k = 0; k * Shape::tokens_at_once < tokens; k += together) {
      const int first = lane / key_piece::a_key + k * Shape::tokens_at_once;
      quad key[together];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const std::int64_t there = __shfl_sync(~0u, from, first + i * Shape::tokens_at_once);
        key[i] = {};
        if (there >= 0)
          key[i] = wide ? key_piece::load<true, Shape::again>(piece + there)
                        : key_piece::load<false>(piece + there);
      }
      std::uint8_t* const to =
          p.keys + std::int64_t{begin} * index_k_cache::key_bytes + (lane + 32 * k) * key_piece::bytes;
#pragma unroll
      for (int i = 0; i < together; ++i)
        if (first + i * Shape::tokens_at_once < tokens)
          store_quad_if_stays(stays, to + 32 * i * key_piece::bytes, key[i]);
    }
  }
  if (!p.scales || lane >= tokens) return;
  p.scales[begin + lane] =
      page < 0 ? 0 : *reinterpret_cast<const std::uint32_t*>(p.cache.data + op.scale_byte(page, mine.token));
}

// grid: a few blocks a multiprocessor, no more than the captured tokens have parts
// every warp sums the lengths of all rows, then moves every so-manieth part of the live packed rows; the first
// warp writes the sums instead
template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_a_multiprocessor)
    run_gather(const __grid_constant__ get_k_and_s_op op) {
  wait_for_predecessor();
  constexpr int warps_a_block = Shape::threads / 32;
  const int own = static_cast<int>(blockIdx.x) * warps_a_block + static_cast<int>(threadIdx.x) / 32;
  gather_warp team;
  if (own == 0) return op.vectors(team);
  const std::int64_t warps = std::int64_t{gridDim.x} * warps_a_block - 1;
  const bool wide = moves_wide(op.p.cache), plain = wide && op.p.keys && op.p.scales && !op.p.page_map;
  std::int64_t part = own - 1;
  std::int32_t before = 0;
  for (int base = 0; base < op.p.lengths.rows; base += packed_ends::rows) {
    const packed_ends ends(op.p, base, before);
    const std::int32_t end = ends.last();
    for (; part * Shape::tokens < end; part += warps) {
      const std::int64_t from = part * Shape::tokens, to = from + Shape::tokens;
      const auto begin = static_cast<std::int32_t>(from > before ? from : before);
      const auto stop = static_cast<std::int32_t>(to < end ? to : end);
      if (begin < stop) {
        const packed_ends::range at = ends.find(begin);
        if (!(plain && stop <= at.end && stop - begin == Shape::tokens &&
              move_whole<Shape>(op, begin, {base + at.row, at.begin})))
          move_any<Shape>(op, wide, begin, stop, ends, base, at);
      }
      if (to > end) break;  // the rest of this part belongs to the next rows
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
