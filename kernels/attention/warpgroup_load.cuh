#pragma once

#include "kernels/attention/split_segments.cuh"
#include "kernels/attention/warpgroup_tile.cuh"
#include "kernels/attention/wgmma.cuh"

namespace stepgraph::detail {

/// The loading warpgroup plans, and brings what each segment needs as stages become free: two warps its keys,
/// two its queries and then its values, so that neither waits for the other's stages. A warp looks up and
/// brings half of each tile's tokens; entries are read a tile ahead.
template <class T, int HeadSize, class Tile>
struct warpgroup_loader {
  static constexpr int pass_lines = 32 / Tile::line_vectors;  // lines that a warp brings at once
  const split_params& p;
  warpgroup_held<Tile>& held;
  std::uint32_t shared;
  ring_place<Tile::query_stages> query;
  ring_place<Tile::orders> order;

  __device__ static std::uint32_t place(int line, int piece, int column_bytes) {
    return piece / 8 * column_bytes + line * 128 + ((piece ^ line) & 7) * 16;
  }

  __device__ void load_query(const row_work& work, const segment& s) {
    wait_barrier(shared_address(&held.empty_query[query.stage()]), query.parity() ^ 1);
    const int thread = threadIdx.x % 64, piece = thread % Tile::line_vectors, group = p.group;
    const std::uint32_t to = shared + Tile::queries_at + query.stage() * Tile::query_bytes;
#pragma unroll 2
    for (int line = thread / Tile::line_vectors; line < Tile::query_rows; line += 64 / Tile::line_vectors) {
      const bool there = line < s.lines;
      const int packed = s.first_line + (there ? line : 0), j = packed / group;
      const T* const from =
          static_cast<const T*>(p.op.query) +
          (std::int64_t{work.first_token + j} * p.op.heads + s.kv_head * group + packed - j * group) *
              HeadSize +
          piece * 8;
      copy_async(to + place(line, piece, Tile::query_column_bytes), from, there);
    }
    arrive_after_copies(shared_address(&held.full_query[query.stage()]));
    query.advance();
  }

  /// Tells the multiplying warps what comes.
  __device__ void give(const segment_order& next) {
    wait_barrier(shared_address(&held.empty_order[order.stage()]), order.parity() ^ 1);
    if (threadIdx.x == 0) {
      held.orders[order.stage()] = next;
      arrive(shared_address(&held.full_order[order.stage()]));
    }
    order.advance();
  }

  /// Whether the order at hand had an entry that is no page; all loading threads ask together, once an order, so that
  /// none of them gives the next but one while another still asks.
  __device__ bool was_bad() const {
    const ring_place<Tile::orders> given = order.before();
    arrive(shared_address(&held.brought));
    static_assert(Tile::orders == 2, "an order's stage is its number's parity");
    wait_barrier(shared_address(&held.brought), given.stage());
    const segment_order& brought = held.orders[given.stage()];
    return brought.bad[0] || brought.bad[1];
  }

  /// A segment's keys, or its values, to the ring at `to`. What is not there becomes zeros, so that nothing it
  /// holds reaches arithmetic. With the last keys, those who multiply them see in their order whether some entry
  /// was no page.
  template <bool Keys>
  __device__ void load_tiles(const row_work& work, const segment& s, const segment_span& span, bool careful,
                             std::uint32_t to,
                             ring_place<Keys ? Tile::key_stages : Tile::value_stages>& ring) {
    const kv_pages_view& cache = p.op.cache;
    const step_kv_view& own = p.op.step_kv;
    const std::int32_t* const table = row_pages::of(p.op, s.row).entries;
    const int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, piece = lane % Tile::line_vectors;
    const T* const pool = static_cast<const T*>(Keys ? cache.keys : cache.values);
    // one of the step's own; rare, so that nothing of it is to be held in registers
    const auto beside = [&](int position) {
      std::int64_t token = work.first_token + position - work.base();
      asm volatile("" : "+l"(token));
      return static_cast<const T*>(Keys ? own.keys : own.values) + token * own.token_stride +
             s.kv_head * own.head_stride;
    };
    // what a box of the copy engine holds comes with its first tokens, as far as the row goes: whoever does not see
    // them masks them
    const int box = p.bulk ? 1 << min(p.op.page_shift, 6) : 1;
    const bool mixed = span.listed_end < span.end;
    const int end = mixed ? span.end : min(work.length, (span.end + box - 1) & -box);
    const int listed_end = mixed ? span.listed_end : end;
    // a box that these cut cannot come whole; one outside comes as page -1, for which the engine puts zeros
    const int boxes_end = mixed ? span.listed_end & -box : (end & (box - 1)) != 0 ? end & -box : 1 << 30;
    const int cut_begin = (span.begin & (box - 1)) != 0 ? span.begin : -Tile::kv_tokens;
    const auto within = [&](int position, int to) {
      return !Tile::guarded ||
             static_cast<unsigned>(position - span.begin) < static_cast<unsigned>(to - span.begin);
    };
    const auto listed = [&](int position) { return within(position, listed_end); };
    const unsigned pages = page_limit(cache);
    int position = span.first_tile * Tile::kv_tokens + half * Tile::warp_tokens + lane;
    std::int32_t entry[Tile::warp_words];
    const auto look_up = [&](int at) { return listed(at) ? table[at >> p.op.page_shift] : 0; };
#pragma unroll
    for (int word = 0; word < Tile::warp_words; ++word) entry[word] = look_up(position + word * 32);
    std::int32_t bad = 0;  // an entry that is no page; 0 is one
#pragma unroll 1
    for (int tile = span.first_tile; tile < span.last_tile; ++tile, position += Tile::kv_tokens) {
      const std::uint32_t full = shared_address((Keys ? held.full_keys : held.full_values) + ring.stage());
      const std::uint32_t stage = to + ring.stage() * Tile::kv_bytes + half * Tile::warp_tokens * 128;
      const int first = position - lane;
      bool there[Tile::warp_words];
#pragma unroll
      for (int word = 0; word < Tile::warp_words; ++word) {
        const int at = position + word * 32;
        there[word] = within(at, end);
        if (Tile::guarded && listed(at) && static_cast<unsigned>(entry[word]) >= pages) {
          there[word] = false;
          bad = entry[word];
        }
        if (Tile::guarded && !there[word]) entry[word] = -1;
      }
      if (Keys && Tile::guarded && !careful && tile + 1 == span.last_tile && __any_sync(~0u, bad != 0) &&
          lane == 0) {
        // the order says so only once it is there
        const ring_place<Tile::orders> given = order.before();
        wait_barrier(shared_address(&held.full_order[given.stage()]), given.parity());
        held.orders[given.stage()].bad[half] = true;
      }
      // all of this warp's tokens lie in boxes of the pool, or nowhere. note: all that can be is known before the
      // stage is free
      const bool boxed =
          p.bulk && (!Tile::guarded || ((first + Tile::warp_tokens <= boxes_end || first >= end) &&
                                        static_cast<unsigned>(cut_begin - first) >= Tile::warp_tokens));
      const int column = lane % Tile::columns, token = lane / Tile::columns << min(p.op.page_shift, 6);
      std::int32_t page = __shfl_sync(~0u, entry[0], token % 32);
      if (const std::int32_t later = __shfl_sync(~0u, entry[Tile::warp_words - 1], token % 32); token >= 32)
        page = later;
      wait_barrier(shared_address((Keys ? held.empty_keys : held.empty_values) + ring.stage()),
                   ring.parity() ^ 1);
      if (Keys && Tile::guarded && careful) {
#pragma unroll
        for (int word = 0; word < Tile::warp_words; ++word) {
          const std::uint32_t bits = __ballot_sync(~0u, there[word]);
          if (lane == 0) held.live[ring.stage()][half * Tile::warp_words + word] = bits;
        }
      }
      if (boxed) {
        if (lane == 0) expect_more(full, Tile::warp_tokens * HeadSize * int{sizeof(T)});
        __syncwarp();
        if (token < Tile::warp_tokens)
          copy_box(stage + token * 128 + column * Tile::kv_column_bytes, Keys ? &p.keys_map : &p.values_map,
                   column * 64, (first + token) & ((1 << p.op.page_shift) - 1), s.kv_head, page, full);
#pragma unroll
        for (int word = 0; word < Tile::warp_words; ++word)
          entry[word] = look_up(position + word * 32 + Tile::kv_tokens);
      } else {
#pragma unroll
        for (int word = 0; word < Tile::warp_words; ++word) {
          const int at = position + word * 32;
          const int in_page = at & ((1 << p.op.page_shift) - 1);
          const T* const from = !there[word] ? nullptr
                                : listed(at)
                                    ? pool + (entry[word] * cache.page_stride + in_page * cache.token_stride +
                                              s.kv_head * cache.head_stride)
                                    : beside(at);
          entry[word] = look_up(at + Tile::kv_tokens);
#pragma unroll 2
          for (int pass = 0; pass < 32 / pass_lines; ++pass) {
            const int token = pass * pass_lines + lane / Tile::line_vectors;
            const auto line = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(from), token);
            copy_async(stage + word * 32 * 128 + place(token, piece, Tile::kv_column_bytes),
                       (line == 0 ? pool : reinterpret_cast<const T*>(line)) + piece * 8, line != 0);
          }
        }
      }
      arrive_after_copies(full);
      if (Keys && lane == 0) arrive(full);
      ring.advance();
    }
    if (Keys && bad != 0 && !careful) report_fault(p, s.row, row_status::slot_out_of_range, bad);
  }

  /// All of the block's segments, in order. One with an entry that is no page comes again, with words that say
  /// which of its tokens are there; no others need them.
  template <bool Keys>
  __device__ void run(const block_work& block) {
    ring_place<Keys ? Tile::key_stages : Tile::value_stages> ring;
    for_each_segment<Tile>(p, block, [&](const row_work& work, segment& s) {
      if constexpr (Keys) place_parts<Tile>(p, block, s);
      bool careful = false;
#pragma unroll 1
      do {
        const segment_span span = span_of<Tile>(p, work, s);
        if constexpr (Keys)
          give({work, s, careful ? span.masked() : span, careful});
        else
          order.advance();
        if (span.first_tile < span.last_tile) {
          if constexpr (!Keys) load_query(work, s);
          load_tiles<Keys>(work, s, span, careful, shared + (Keys ? Tile::keys_at : Tile::values_at), ring);
        }
        careful = Tile::guarded && was_bad();
      } while (careful);
    });
    if constexpr (Keys) give({});
  }
};

}  // namespace stepgraph::detail
