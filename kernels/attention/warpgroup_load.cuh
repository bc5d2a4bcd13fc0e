#pragma once

#include "kernels/attention/split_plan.cuh"
#include "kernels/attention/warpgroup_tile.cuh"
#include "kernels/attention/wgmma.cuh"

namespace stepgraph::detail {

/// The loading warpgroup: brings each segment's queries, then its KV tiles, keys before values, as stages
/// become free. A warp looks up and brings its own quarter of each tile's tokens; entries are read a tile
/// ahead.
template <class T, int HeadSize, class Tile>
struct warpgroup_loader {
  static constexpr int pass_lines = 32 / Tile::line_vectors;  // lines that a warp brings at once
  const split_params& p;
  warpgroup_held<Tile>& held;
  std::uint32_t shared;
  ring_place<Tile::stages> kv;
  ring_place<Tile::query_stages> query;

  __device__ static std::uint32_t place(int line, int piece, int column_bytes) {
    return piece / 8 * column_bytes + line * 128 + ((piece ^ line) & 7) * 16;
  }

  __device__ void load_query(const row_work& work, const segment& s) {
    wait_barrier(shared_address(&held.empty_query[query.stage]), query.parity ^ 1);
    const int thread = threadIdx.x, piece = thread % Tile::line_vectors, group = p.group;
    const std::uint32_t to = shared + Tile::queries_at + query.stage * Tile::query_bytes;
#pragma unroll 2
    for (int line = thread / Tile::line_vectors; line < Tile::query_rows; line += 128 / Tile::line_vectors) {
      const bool there = line < s.lines;
      const int packed = s.first_line + (there ? line : 0), j = packed / group;
      const T* const from = static_cast<const T*>(p.op.query) +
                            (std::int64_t{work.first_token + j} * p.op.heads + s.kv_head * group + packed -
                             j * group) *
                                HeadSize +
                            piece * 8;
      copy_async(to + place(line, piece, Tile::query_column_bytes), from, there);
    }
    arrive_after_copies(shared_address(&held.full_query[query.stage]));
    query.advance();
  }

  /// Lines of this warp's tokens, whose offsets the lanes hold, from `from` to `to`. What is not there becomes
  /// zeros, so that nothing it holds reaches arithmetic.
  __device__ void load_lines(const T* from, std::uint32_t to, std::int64_t offset) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = lane % Tile::line_vectors;
#pragma unroll
    for (int pass = 0; pass < Tile::warp_tokens / pass_lines; ++pass) {
      const int token = pass * pass_lines + lane / Tile::line_vectors;
      const std::int64_t at = __shfl_sync(~0u, offset, token);
      copy_async(to + place(warp * Tile::warp_tokens + token, piece, Tile::kv_column_bytes),
                 from + (at < 0 ? 0 : at), at >= 0);
    }
  }

  __device__ void load_segment(const row_work& work, const segment& s) {
    const segment_span span = span_of<Tile>(p, work, s);
    if (span.first_tile >= span.last_tile) return;
    const kv_pages_view& cache = p.op.cache;
    const std::int32_t* const table = p.op.page_table + s.row * p.op.page_table_stride;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int own = warp * Tile::warp_tokens + lane;
    const auto inside = [&](int position) {
      return lane < Tile::warp_tokens && position >= span.begin && position < span.end;
    };
    int position = span.first_tile * Tile::kv_tokens + own;
    std::int32_t entry = inside(position) ? table[position >> p.op.page_shift] : 0;
    load_query(work, s);
    const std::int64_t head = s.kv_head * cache.head_stride + lane % Tile::line_vectors * 8;
    const T* const keys = static_cast<const T*>(cache.keys) + head;
    const T* const values = static_cast<const T*>(cache.values) + head;
#pragma unroll 1
    for (int tile = span.first_tile; tile < span.last_tile; ++tile) {
      bool there = inside(position);
      if (there && (entry < 0 || (cache.pages > 0 && entry >= cache.pages))) {
        there = false;
        report_fault(p.op.faults, s.row, row_status::slot_out_of_range, entry);
      }
      const int in_page = position & ((1 << p.op.page_shift) - 1);
      const std::int64_t offset = there ? entry * cache.page_stride + in_page * cache.token_stride : -1;
      const std::uint32_t bits = __ballot_sync(~0u, there);
      position += Tile::kv_tokens;
      entry = tile + 1 < span.last_tile && inside(position) ? table[position >> p.op.page_shift] : 0;

      const std::uint32_t full_keys = shared_address(&held.full_keys[kv.stage]);
      wait_barrier(shared_address(&held.empty_keys[kv.stage]), kv.parity ^ 1);
      load_lines(keys, shared + Tile::keys_at + kv.stage * Tile::kv_bytes, offset);
      arrive_after_copies(full_keys);
      if (lane == 0) {
        held.live[kv.stage][warp] = bits;
        arrive(full_keys);
      }
      wait_barrier(shared_address(&held.empty_values[kv.stage]), kv.parity ^ 1);
      load_lines(values, shared + Tile::values_at + kv.stage * Tile::kv_bytes, offset);
      arrive_after_copies(shared_address(&held.full_values[kv.stage]));
      kv.advance();
    }
  }
};

}  // namespace stepgraph::detail
