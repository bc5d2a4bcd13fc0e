#pragma once

#include "kernels/attention/token_view.hpp"
#include "kernels/attention/warpgroup_load.cuh"
#include "kernels/attention/warpgroup_rows.cuh"

namespace stepgraph::detail {

#if STEPGRAPH_HAS_WGMMA

/// A multiplying warpgroup's 64 query rows: running softmax and weighted values. A thread holds rows lane / 4
/// and lane / 4 + 8 of its warp's 16.
template <class T, int HeadSize, class Tile>
struct warpgroup_attention : warpgroup_rows<T, HeadSize, Tile> {
  static constexpr int score_groups = Tile::kv_tokens / 8;
  using score_product = warpgroup_product<T, Tile::kv_tokens>;
  using value_product = warpgroup_product<T, HeadSize>;
  using rows = warpgroup_rows<T, HeadSize, Tile>;
  using rows::end, rows::finish, rows::held, rows::largest, rows::line, rows::p, rows::sum, rows::unit,
      rows::warpgroup, rows::weighted;
  std::uint32_t shared;
  ring_place<Tile::key_stages> key_ring;
  ring_place<Tile::value_stages> value_ring;
  ring_place<Tile::query_stages> query;

  float scores[score_groups][4];
  std::uint32_t weights[Tile::kv_tokens / 16][4];

  __device__ void start(const row_work& work, const segment& s) {
#pragma unroll
    for (auto& each : weighted)
#pragma unroll
      for (float& value : each) value = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = -INFINITY;
      sum[half] = 0;
      const int j = (s.first_line + min(line(half), s.lines - 1)) / p.group;
      end[half] = work.base() + j + 1;
    }
  }

  /// Frees a stage of a ring: one arrival a warp, after its reads.
  __device__ void free(std::uint64_t& barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared_address(&barrier));
  }

  /// Starts scores = queries . keys of the next tile.
  __device__ void start_scores() {
    wait_barrier(shared_address(&held.full_keys[key_ring.stage()]), key_ring.parity());
    fence_for_products();
    const shared_matrix queries(
        shared + Tile::queries_at + query.stage() * Tile::query_bytes + warpgroup * 64 * 128, 16);
    const shared_matrix keys(shared + Tile::keys_at + key_ring.stage() * Tile::kv_bytes, 16);
    begin_products();
#pragma unroll
    for (int step = 0; step < HeadSize / 16; ++step)
      score_product::both_shared(scores, queries.from(step / 4 * Tile::query_column_bytes + step % 4 * 32),
                                 keys.from(step / 4 * Tile::kv_column_bytes + step % 4 * 32), step > 0);
    commit_products();
  }

  /// Starts weighted += weights . values of the tile that the weights are of.
  __device__ void start_values() {
    wait_barrier(shared_address(&held.full_values[value_ring.stage()]), value_ring.parity());
    fence_for_products();
    const shared_matrix values(shared + Tile::values_at + value_ring.stage() * Tile::kv_bytes,
                               Tile::kv_column_bytes);
    pin(weighted);
    begin_products();
#pragma unroll
    for (int step = 0; step < Tile::kv_tokens / 16; ++step)
      value_product::first_held(weighted, weights[step], values.from(step * 16 * 128));
    commit_products();
  }

  /// Hides what this thread's rows do not see of the tile at `position`, or is not there. note: few tiles need it,
  /// so a tree's ancestors are looked up here
  __device__ void mask(const segment_order& order, int position) {
    const int column = threadIdx.x % 4 * 2;
    token_view view[2];
    if constexpr (Tile::trees) {
      for (int half = 0; half < 2; ++half) {
        const int base = order.work.base(), j = end[half] - 1 - base;
        view[half] = token_view::make(base, j, p.op.window, p.op.tree_mask + order.work.first_token + j);
      }
    }
#pragma unroll
    for (int word = 0; word < Tile::words; ++word) {
      std::uint32_t live = ~0u;
      if (Tile::guarded && order.careful)
        live = __shfl_sync(~0u, threadIdx.x % 32 == 0 ? held.live[key_ring.stage()][word] : 0, 0);
      std::uint32_t seen[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int to = end[half] - position - word * 32;
        const int from = p.op.window > 0 ? to - p.op.window : 0;
        const std::uint32_t bits = Tile::trees
                                       ? static_cast<std::uint32_t>(view[half].sees_64(position + word * 32))
                                       : bits_below(to) & ~bits_below(from);
        seen[half] = (live & bits) >> column;
      }
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (!(seen[e / 2] >> (n * 8 + e % 2) & 1)) scores[word * 4 + n][e] = -INFINITY;
    }
  }

  /// Scores become weights; returns what the earlier ones are to be scaled by. Frees the keys' stage.
  __device__ void softmax(const segment_order& order, int tile, float (&factor)[2]) {
    const segment_span& span = order.span;
    if (p.op.logit_cap > 0) {
      const float inner = __fdividef(p.op.scale, p.op.logit_cap);
#pragma unroll
      for (auto& each : scores)
#pragma unroll
        for (float& value : each) value = p.op.logit_cap * tanh_fast(inner * value);
    }
    const int position = tile * Tile::kv_tokens;
    if (position < span.all_begin || position + Tile::kv_tokens > span.all_end) mask(order, position);
    free(held.empty_keys[key_ring.stage()]);
    key_ring.advance();
    float now[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < score_groups; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) now[e / 2] = fmaxf(now[e / 2], scores[n][e]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 1));
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 2));
      const float from = now[half] == -INFINITY ? 0.0f : now[half];
      factor[half] = exp2_fast((largest[half] - from) * unit);
      largest[half] = now[half];
      now[half] = -from * unit;
      sum[half] *= factor[half];
    }
#pragma unroll
    for (int n = 0; n < score_groups; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = exp2_fast(fmaf(scores[n][e], unit, now[e / 2]));
        sum[e / 2] += scores[n][e];
      }
  }

  __device__ void pack_weights() {
#pragma unroll
    for (int step = 0; step < Tile::kv_tokens / 16; ++step)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        weights[step][e] =
            pack<T>(scores[2 * step + e / 2][e % 2 * 2], scores[2 * step + e / 2][e % 2 * 2 + 1]);
  }

  __device__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (auto& each : weighted)
#pragma unroll
      for (int e = 0; e < 4; ++e) each[e] *= factor[e / 2];
  }

  __device__ void wait_values() {
    wait_products<0>();
    pin(weighted);
    free(held.empty_values[value_ring.stage()]);
    value_ring.advance();
  }

  /// All KV tiles of a segment. The scores of a tile are on their way while the values of the one before are,
  /// and its softmax runs beside the other warpgroup's products.
  __device__ void multiply_overlapped(const segment_order& order) {
    const segment_span& span = order.span;
    float factor[2];
    start_scores();
    wait_products<0>();
    pin(scores);
    softmax(order, span.first_tile, factor);
    pack_weights();
#pragma unroll 1
    for (int tile = span.first_tile + 1; tile < span.last_tile; ++tile) {
      start_scores();
      start_values();
      wait_products<1>();
      pin(scores);
      softmax(order, tile, factor);
      wait_values();
      rescale(factor);
      pack_weights();
    }
    free(held.empty_query[query.stage()]);
    query.advance();
    start_values();
    wait_values();
  }

  __device__ void multiply(const segment_order& order) {
    start(order.work, order.s);
    if (order.span.first_tile >= order.span.last_tile) return;
    wait_barrier(shared_address(&held.full_query[query.stage()]), query.parity());
    multiply_overlapped(order);
  }

  /// All that the loading warpgroup orders.
  __device__ void run() {
    ring_place<Tile::orders> order;
    while (true) {
      wait_barrier(shared_address(&held.full_order[order.stage()]), order.parity());
      const segment_order& now = held.orders[order.stage()];
      if (now.s.lines == 0) return;
      multiply(now);
      if (!Tile::guarded || !(now.bad[0] || now.bad[1])) finish(now.work, now.s);
      // note: every thread has read the order, so every thread says so
      __syncwarp();
      arrive(shared_address(&held.empty_order[order.stage()]));
      order.advance();
    }
  }
};

#endif  // STEPGRAPH_HAS_WGMMA

}  // namespace stepgraph::detail
