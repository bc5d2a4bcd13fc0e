#pragma once

#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/settled.hpp"

/// How a team moves the columns of a line: all loads of a thread before its first store, 16 bytes at a time
/// where both sides are aligned, one entry at a time elsewhere.
namespace stepgraph {

/// Four int32, moved by one access.
struct alignas(16) quad {
  std::int32_t v[4];
};

/// Two int64, moved by one access.
struct alignas(16) wide_pair {
  std::int64_t v[2];
};

/// Stores what will not be read again before it has left the L2.
STEPGRAPH_HD void store_streamed(std::int32_t* to, const quad& four) {
#if defined(__CUDA_ARCH__)
  __stcs(reinterpret_cast<int4*>(to), make_int4(four.v[0], four.v[1], four.v[2], four.v[3]));
#else
  *reinterpret_cast<quad*>(to) = four;
#endif
}

STEPGRAPH_HD bool aligned16(const void* pointer) {
  return (reinterpret_cast<std::uintptr_t>(pointer) & 15) == 0;
}

/// Column x is entry[x << shift]: slots of the first tokens of pages, or, with shift 0, a whole line.
struct strided_entries {
  const std::int32_t* entry;
  int shift;

  STEPGRAPH_HD std::int32_t one(std::int64_t x) const {
    // note: 32 by 32 bits, added to the address: one instruction
    const std::uint64_t offset = std::uint64_t{static_cast<std::uint32_t>(x)} * (4u << shift);
    return *reinterpret_cast<const std::int32_t*>(reinterpret_cast<const char*>(entry) + offset);
  }
  STEPGRAPH_HD quad four(std::int64_t x) const { return *reinterpret_cast<const quad*>(entry + x); }
  STEPGRAPH_HD bool by_four() const { return shift == 0 && aligned16(entry); }
};

/// Columns x belong to entry[x >> shift]: several columns a page.
struct repeated_entries {
  const std::int32_t* entry;
  int shift;

  STEPGRAPH_HD std::int32_t one(std::int64_t x) const { return entry[x >> shift]; }
  STEPGRAPH_HD quad four(std::int64_t x) const {
    const std::int32_t shared = entry[x >> shift];
    return {{shared, shared, shared, shared}};
  }
  STEPGRAPH_HD bool by_four() const { return shift >= 2; }
};

/// Columns worth a block's while, of loads of 16 bytes or of one entry a thread.
STEPGRAPH_HD int least_columns_of(int shift) {
  return shift == 0 ? 1024 : 256;
}

#if defined(__CUDA_ARCH__)
/// `map_columns` where values are entries shifted right.
template <int in_flight, class Team, class In, class Out>
__device__ __forceinline__ void shift_columns(Team& team, const In& in, Out& out, std::int32_t begin,
                                              std::int32_t end) {
  constexpr std::int32_t step = Team::size();
  const int shift = out.shift();
  const std::uint32_t limit = out.limit();
  // note: what is past the end is read as the last, so that no branch stands between the loads, and what is
  // wrong is read again, so that nothing is kept for it
  if (in.by_four() && out.by_four()) {
    const std::int32_t quads = end >> 2;
    // the last one to three entries go with the first round
    const std::int32_t odd = (quads << 2) + team.rank();
    const std::int32_t odd_entry = odd < end ? in.one(odd) : 0;
    for (std::int32_t first = (begin >> 2) + team.rank(); first < quads; first += step * in_flight) {
      quad values[in_flight];
      std::uint32_t most = 0;
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        const std::int32_t at = first + i * step < quads ? first + i * step : quads - 1;
        values[i] = in.four(std::int64_t{at} << 2);
      }
#pragma unroll
      for (int i = 0; i < in_flight; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          values[i].v[k] >>= shift;
          most = max(most, static_cast<std::uint32_t>(values[i].v[k]));
        }
      if (most >= limit)
        for (std::int32_t at = first; at < quads && at < first + in_flight * step; at += step)
          for (std::int32_t x = at << 2; x < (at + 1) << 2; ++x) out.store(x, out.convert(x, in.one(x)));
#pragma unroll
      for (int i = 0; i < in_flight; ++i)
        if (most < limit && first + i * step < quads)
          out.store_good4(std::int64_t{first + i * step} << 2, values[i]);
    }
    if (odd < end) out.store(odd, out.convert(odd, odd_entry));
    return;
  }
  for (std::int32_t first = begin + team.rank(); first < end; first += step * in_flight) {
    std::int32_t values[in_flight];
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      values[i] = in.one(first + i * step < end ? first + i * step : end - 1);
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      values[i] >>= shift;
      most = max(most, static_cast<std::uint32_t>(values[i]));
    }
    if (most >= limit)
      for (std::int32_t x = first; x < end && x < first + in_flight * step; x += step)
        out.store(x, out.convert(x, in.one(x)));
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (most < limit && first + i * step < end) out.store_good(first + i * step, values[i]);
  }
}
#endif

/// Moves columns [begin, end) of `in` through `out`, which has
///   value convert(x, entry)                    what column x becomes; may read maps, must not write
///   void store(x, value), store4(x, value[4])  to the output; the latter for x a multiple of 4
///   bool by_four() const                       whether store4 may be used
/// and, where a value is `entry >> shift` as long as that is below a limit,
///   int shift() const, std::uint32_t limit() const
///   void store_good(x, entry >> shift), store_good4(x, quad of these)
/// so that most entries cost no more than a maximum: only a thread with one past the limit looks closer.
/// `begin` is a multiple of 4; `in_flight` accesses of a thread are under way at a time.
template <int in_flight = 4, class Team, class In, class Out>
STEPGRAPH_HD void map_columns(Team& team, const In& in, Out& out, std::int32_t begin, std::int32_t end) {
#if defined(__CUDA_ARCH__)
  using value = typename Out::value;
  constexpr std::int32_t step = Team::size();
  if constexpr (requires { out.limit(); }) return shift_columns<in_flight>(team, in, out, begin, end);
  if (in.by_four() && out.by_four()) {
    const std::int32_t quads = end >> 2;
    // the last one to three entries go with the first round
    const std::int32_t odd = (quads << 2) + team.rank();
    std::int32_t odd_entry = 0;
    if (odd < end) odd_entry = in.one(odd);
    for (std::int32_t first = (begin >> 2) + team.rank(); first < quads; first += step * in_flight) {
      // note: offsets from one address, so that they become immediates
      const std::int64_t x = std::int64_t{first} << 2;
      quad entries[in_flight];
#pragma unroll
      for (int i = 0; i < in_flight; ++i)
        if (first + i * step < quads) entries[i] = in.four(x + 4 * i * step);
#pragma unroll
      for (int i = 0; i < in_flight; ++i)
        if (first + i * step < quads) {
          value values[4];
#pragma unroll
          for (int k = 0; k < 4; ++k)
            values[k] = out.convert(static_cast<std::int32_t>(x) + 4 * i * step + k, entries[i].v[k]);
          out.store4(x + 4 * i * step, values);
        }
    }
    if (odd < end) out.store(odd, out.convert(odd, odd_entry));
    return;
  }
  for (std::int32_t first = begin + team.rank(); first < end; first += step * in_flight) {
    const std::int64_t x = first;
    std::int32_t entries[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (first + i * step < end) entries[i] = in.one(x + i * step);
    value values[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (first + i * step < end) values[i] = out.convert(first + i * step, entries[i]);
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (first + i * step < end) out.store(x + i * step, values[i]);
  }
#else
  for (std::int32_t x = begin + team.rank(); x < end; x += team.size())
    out.store(x, out.convert(x, in.one(x)));
#endif
}

/// What follows the live columns of a table's line.
enum class tail_mode : std::int32_t {
  none = 0,      // nothing is written
  multiple = 1,  // `value` up to the next multiple of `columns`, on live lines
  whole = 2,     // `value` to the end of every line of the bucket: costs the captured width
};
struct tail_rule {
  tail_mode mode = tail_mode::none;
  std::int32_t multiple = 1;  // columns
  std::int32_t value = -1;

  /// Columns written of a line with `live` ones in a table of `width`; `is_live`: the line is one of the
  /// step's.
  STEPGRAPH_HD std::int32_t written(std::int32_t live, std::int64_t width, bool is_live = true) const {
    if (mode == tail_mode::none) return live;
    if (mode == tail_mode::whole) return static_cast<std::int32_t>(width);
    if (!is_live) return live;
    const std::int64_t end = (std::int64_t{live} + multiple - 1) / multiple * multiple;
    return static_cast<std::int32_t>(end < width ? end : width);
  }
};

/// A table of int32 that an op writes, lines `stride` entries apart.
struct table_sink {
  std::int32_t* data = nullptr;  // [lines, columns], or null: not written
  std::int64_t stride = 0;       // entries
  std::int64_t columns = 0;      // captured width
  std::int32_t skip = -1;        // written where there is nothing to point at: -1, or 0 for the sink
  tail_rule tail{};

  STEPGRAPH_HD std::int32_t* line(std::int64_t index) const { return data + index * stride; }
  STEPGRAPH_HD explicit operator bool() const { return data != nullptr; }
};

/// Writes `value` to columns [begin, end) of `lines` lines from `line` on.
template <class Team>
STEPGRAPH_HD void fill_columns(Team& team, std::int32_t* line, std::int64_t stride, int lines,
                               std::int32_t begin, std::int32_t end, std::int32_t value) {
  for (int i = 0; i < lines; ++i)
    for (std::int32_t x = begin + team.rank(); x < end; x += team.size()) line[i * stride + x] = value;
}

}  // namespace stepgraph
