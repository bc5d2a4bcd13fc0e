#pragma once

#include "kernels/attention/mma.cuh"
#include "kernels/attention/paged_attention.hpp"

/// How a cluster of blocks brings a row's keys and values into shared memory.
namespace stepgraph::llama::detail {

using namespace stepgraph::detail;  // the instructions

constexpr int cluster_threads = 128, cluster_warps = 4;
constexpr int tile_tokens = 64;  // keys and values of a stage; a warp takes 16
constexpr int max_cluster = 8;
constexpr std::uint32_t nowhere = ~0u;  // of shared memory

template <int HeadSize>
constexpr int stages = HeadSize == 64 ? 4 : 3;

/// A piece of a line lies elsewhere in each of eight lines, so that they are in different banks.
__device__ __forceinline__ int swizzled(int piece, int line) {
  return piece ^ (line & 7);
}

/// A fault is rare and its report long: kept out of straight code.
inline __device__ __noinline__ void report(const fault_sink& faults, int row, row_status status,
                                           std::int64_t value) {
  faults.report(op_id::paged_attention, row, status, value);
}

struct row_shape {
  int first_token, tokens, length;
  __device__ int base() const { return length - tokens; }
};

inline __device__ row_shape shape_of(const paged_attention_params& p, int row, bool reports) {
  const int begin = __ldcg(p.cu_seqlens_q + row), end = __ldcg(p.cu_seqlens_q + row + 1);
  const int length = __ldcg(p.cache_seqlens + row);
  const std::int64_t capacity = p.page_columns << p.page_shift;
  row_shape shape;
  shape.first_token = min(max(begin, 0), p.tokens);
  shape.tokens = min(max(end, shape.first_token), p.tokens) - shape.first_token;
  shape.length = static_cast<int>(min(std::int64_t{max(length, 0)}, capacity));
  if (shape.tokens > 0 && shape.length != length && reports && threadIdx.x == 0)
    report(p.faults, row, row_status::length_clamped, length);
  return shape;
}

/// Brings a row's keys and values, tile by tile, into shared memory. A thread has the same 16-byte piece of
/// several tokens of each tile.
template <int HeadSize>
struct tile_loader {
  static constexpr int pieces = HeadSize / 8, pass_tokens = cluster_threads / pieces,
                       passes = tile_tokens / pass_tokens;
  static constexpr int line_bytes = HeadSize * 2, keys_bytes = tile_tokens * line_bytes;
  const paged_attention_params& p;
  const std::int32_t* table;
  int row, length, token, piece;
  std::int64_t head_offset;
  std::uint32_t ring;

  __device__ tile_loader(const paged_attention_params& params, int row, int length, std::uint32_t ring)
      : p(params),
        table(params.page_table + row * params.page_table_stride),
        row(row),
        length(length),
        token(threadIdx.x / pieces),
        piece(threadIdx.x % pieces),
        head_offset(blockIdx.x * params.cache.head_stride + piece * 8),
        ring(ring) {}

  __device__ void look_up(int tile, std::int32_t (&pages)[passes]) const {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int position = tile * tile_tokens + pass * pass_tokens + token;
      pages[pass] = position < length ? __ldcg(table + (position >> p.page_shift)) : 0;
    }
  }

  /// Element of the pool where this thread's piece of `position` lies, negative if nowhere.
  __device__ std::int64_t place(int position, std::int32_t page) const {
    if (page < 0 || (p.cache.pages > 0 && page >= p.cache.pages)) {
      if (piece == 0) report(p.faults, row, row_status::slot_out_of_range, page);
      return -1;
    }
    const int in_page = position & ((1 << p.page_shift) - 1);
    return page * p.cache.page_stride + in_page * p.cache.token_stride + head_offset;
  }

  __device__ std::uint32_t target(int stage, int line) const {
    return ring + stage * 2 * keys_bytes + line * line_bytes + swizzled(piece, line) * 16;
  }

  __device__ void copy(std::uint32_t to, std::int64_t from) const {
    copy_async(to, static_cast<const bf16*>(p.cache.keys) + max(from, std::int64_t{0}), from >= 0);
    copy_async(to + keys_bytes, static_cast<const bf16*>(p.cache.values) + max(from, std::int64_t{0}),
               from >= 0);
  }

  /// Starts the copies of a tile's positions before `end`; zeros for those past the row.
  __device__ void start(int tile, int stage, const std::int32_t (&pages)[passes], int end) const {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int line = pass * pass_tokens + token, position = tile * tile_tokens + line;
      if (position < end || position >= length)
        copy(target(stage, line), position < end ? place(position, pages[pass]) : -1);
    }
  }
};

}  // namespace stepgraph::llama::detail
