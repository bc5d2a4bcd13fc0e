#pragma once

#include "kernels/attention/mma.cuh"
#include "kernels/attention/split_plan.cuh"

namespace stepgraph::detail {

/// Positions of a row that a segment may touch: those that some query of its tile sees.
struct load_range {
  std::int32_t begin;
  std::int32_t end;
};

/// Brings KV tiles of one (row, KV head) into shared memory, a stage each. Pages are looked up a tile ahead: lane i of
/// every warp holds where tokens i and i + 32 of the coming tile lie.
template <class T, int HeadSize, class Tile>
struct kv_loader {
  const split_params& p;
  const std::int32_t* table;
  load_range range;
  std::int32_t row;
  std::int64_t head_offset;  // elements, of this thread's piece of a line
  std::uint32_t to;          // shared address of this thread's first piece in stage 0
  std::uint32_t (*live)[2];  // [stages] tokens of a stage that are there, a bit each

  __device__ kv_loader(const split_params& params, const segment& s, load_range positions, std::uint32_t stages,
                       std::uint32_t (*live_bits)[2])
      : p(params), range(positions), row(s.row), live(live_bits) {
    table = p.op.page_table + s.row * p.op.page_table_stride;
    const int piece = threadIdx.x % Tile::line_vectors, token = threadIdx.x / Tile::line_vectors;
    head_offset = s.kv_head * p.op.cache.head_stride + piece * 8;
    to = stages + token * Tile::line_bytes + swizzle(piece, token) * 16;
  }

  /// Page entries of tile `tile`; -1 for positions outside the range, whose entries are not read.
  __device__ void look_up(int tile, std::int32_t (&pages)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = tile * split_kv_tokens + half * 32 + threadIdx.x % 32;
      const bool inside = position >= range.begin && position < range.end;
      pages[half] = inside ? table[position >> p.op.page_shift] : -1;
      if (inside && !is_page(pages[half]) && threadIdx.x < 32)
        p.op.faults.report(op_id::paged_attention, row, row_status::slot_out_of_range, pages[half]);
    }
  }

  __device__ bool is_page(std::int32_t page) const {
    return page >= 0 && (p.op.cache.pages <= 0 || page < p.op.cache.pages);
  }

  /// Starts the copies of tile `tile` into `stage`. What is not there becomes zeros, so that nothing it holds reaches
  /// arithmetic.
  __device__ void start(int tile, int stage, const std::int32_t (&pages)[2]) const {
    const kv_pages_view& cache = p.op.cache;
    std::int64_t offset[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = tile * split_kv_tokens + half * 32 + threadIdx.x % 32;
      const bool there = is_page(pages[half]);
      const int in_page = position & ((1 << p.op.page_shift) - 1);
      offset[half] = there ? pages[half] * cache.page_stride + in_page * cache.token_stride : -1;
      const std::uint32_t bits = __ballot_sync(~0u, there);
      if (threadIdx.x == 0) live[stage][half] = bits;
    }
    const int first = threadIdx.x / Tile::line_vectors;
    const T* const keys = static_cast<const T*>(cache.keys) + head_offset;
    const T* const values = static_cast<const T*>(cache.values) + head_offset;
    const std::uint32_t stage_to = to + stage * Tile::stage_bytes;
#pragma unroll
    for (int pass = 0; pass < Tile::passes; ++pass) {
      const std::int64_t at =
          __shfl_sync(~0u, offset[pass * Tile::pass_tokens / 32], first + pass * Tile::pass_tokens % 32);
      const std::uint32_t line = stage_to + pass * Tile::pass_tokens * Tile::line_bytes;
      copy_async(line, keys + (at < 0 ? 0 : at), at >= 0);
      copy_async(line + Tile::keys_bytes, values + (at < 0 ? 0 : at), at >= 0);
    }
  }
};

}  // namespace stepgraph::detail
