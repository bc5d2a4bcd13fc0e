#pragma once

#include <cstdint>

#include "kernels/guard.hpp"
#include "kernels/settled.hpp"

namespace stepgraph {

/// Where one number of such a vector lies: known before it may be read.
struct index_place {
  const char* at;
  std::int32_t wide;

  /// All of it in one number, for a use that makes the compiler compute it.
  STEPGRAPH_HD std::uint64_t bits() const { return reinterpret_cast<std::uintptr_t>(at) | wide; }

  STEPGRAPH_HD std::int64_t fetch() const {
#if defined(__CUDA_ARCH__)
    std::int64_t value;
    asm volatile(
        "{\n\t.reg .pred wide;\n\tsetp.ne.s32 wide, %2, 0;\n\t"
        "@wide ld.global.b64 %0, [%1];\n\t@!wide ld.global.s32 %0, [%1];\n\t}"
        : "=l"(value)
        : "l"(at), "r"(wide));
    return value;
#else
    return wide ? *reinterpret_cast<const std::int64_t*>(at) : *reinterpret_cast<const std::int32_t*>(at);
#endif
  }
};

/// A vector of int32 or int64 numbers that an embedder owns, read on the device.
struct index_view {
  const void* data = nullptr;
  bool wide = false;  // int64 if true, else int32

  index_view() = default;
  index_view(const std::int32_t* values) : data(values), wide(false) {}  // NOLINT: a pointer is a view
  index_view(const std::int64_t* values) : data(values), wide(true) {}   // NOLINT

  STEPGRAPH_HD std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }

  /// Where number i lies, read without a branch, so that a row's numbers are all on their way at once.
  STEPGRAPH_HD index_place place_of(std::int64_t i) const {
    return {static_cast<const char*>(data) + (i << (wide ? 3 : 2)), wide};
  }
  STEPGRAPH_HD std::int64_t fetch(std::int64_t i) const { return place_of(i).fetch(); }
};

/// An output vector of int32 or int64 numbers; null writes nothing.
struct index_sink {
  void* data = nullptr;
  bool wide = false;

  index_sink() = default;
  STEPGRAPH_HD index_sink(std::int32_t* values) : data(values), wide(false) {}  // NOLINT: a pointer is a view
  STEPGRAPH_HD index_sink(std::int64_t* values) : data(values), wide(true) {}   // NOLINT

  STEPGRAPH_HD void store(std::int64_t i, std::int64_t value) const {
    if (wide)
      static_cast<std::int64_t*>(data)[i] = value;
    else
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
  }
  /// The same vector from element `first` on.
  STEPGRAPH_HD index_sink from(std::int64_t first) const {
    if (!data) return {};
    return wide ? index_sink(static_cast<std::int64_t*>(data) + first)
                : index_sink(static_cast<std::int32_t*>(data) + first);
  }
  STEPGRAPH_HD explicit operator bool() const { return data != nullptr; }
};

/// The lengths of a step's rows as the device knows them: len = clamp(seq_lens + delta, 0, cap), 0 for dead
/// rows.
struct row_lengths {
  const std::int32_t* live_rows = nullptr;     // n, one number in device memory
  std::int32_t rows = 0;                       // B, captured
  index_view seq_lens{};                       // [rows]
  std::int32_t delta = 0;                      // added to every length ...
  const std::int32_t* delta_by_row = nullptr;  // ... and this, [rows], if not null
  std::int64_t cap = 0;                        // tokens that the table and the context allow

  STEPGRAPH_HD int live() const { return live_count(live_rows, rows); }

  /// Where a row's numbers lie: known before they may be read.
  struct place {
    const std::int32_t* live;
    index_place given;
    const std::int32_t* added;  // or null

    STEPGRAPH_HD std::uint64_t bits() const {
      return given.bits() | reinterpret_cast<std::uintptr_t>(live) | reinterpret_cast<std::uintptr_t>(added);
    }
  };
  STEPGRAPH_HD place place_of(int row) const {
    return {live_rows, seq_lens.place_of(row), delta_by_row ? delta_by_row + row : nullptr};
  }

  // note: n and the row's numbers are all read before the first of them is used, so that one latency covers
  // them; a dead row's numbers are there, but not used

  /// n, and what the embedder's numbers say of a row's length, before the clamp.
  struct numbers {
    std::int32_t live;
    std::int64_t given;
    std::int32_t added;
  };
  STEPGRAPH_HD numbers read(const place& at) const {
    const std::int32_t live = *settled(at.live);
    const std::int64_t given = at.given.fetch();
    return {live, given, fetch_or_zero(at.added)};
  }
  STEPGRAPH_HD std::int64_t raw(const numbers& of) const {
    return of.given + (delta + std::int64_t{of.added});
  }

  /// Length of a captured row. Few steps one after the other, as `cap` fits 32 bits: entries wait for it.
  STEPGRAPH_HD std::int64_t length(int row, const place& at) const { return length(row, read(at)); }
  STEPGRAPH_HD std::int64_t length(int row, const numbers& of) const {
    const std::int64_t value = raw(of);
    const auto low = static_cast<std::uint32_t>(value), most = static_cast<std::uint32_t>(cap);
    const auto high = static_cast<std::int32_t>(value >> 32);
    const std::uint32_t past = high > 0 ? most : guard_off("negative-length") ? low : 0;
    const std::uint32_t kept = high != 0 ? past : low < most ? low : most;
    return row < of.live || guard_off("pad-zero") ? static_cast<std::int32_t>(kept) : 0;
  }
  STEPGRAPH_HD std::int64_t length(int row) const { return length(row, place_of(row)); }

  /// The same, reporting a length that had to be clamped.
  STEPGRAPH_HD std::int64_t length_reported(int row, const place& at, const fault_sink& faults,
                                            op_id op) const {
    const numbers of = read(at);
    const std::int64_t value = raw(of);
    if ((row >= of.live && !guard_off("pad-zero")) || row >= rows) return 0;
    if (value < 0 && guard_off("negative-length")) return value;
    return clamp_reported(value, 0, cap, faults, op, row, row_status::length_clamped);
  }
  STEPGRAPH_HD std::int64_t length_reported(int row, const fault_sink& faults, op_id op) const {
    return length_reported(row, place_of(row), faults, op);
  }
};

}  // namespace stepgraph
