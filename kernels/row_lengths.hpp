#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

namespace stepgraph {

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

  /// The same by a load without a branch, so that a row's numbers are all on their way at once.
  STEPGRAPH_HD std::int64_t fetch(std::int64_t i) const {
#if defined(__CUDA_ARCH__)
    std::int64_t value;
    const char* const at = static_cast<const char*>(data) + (i << (wide ? 3 : 2));
    asm volatile(
        "{\n\t.reg .pred wide;\n\tsetp.ne.s32 wide, %2, 0;\n\t"
        "@wide ld.global.b64 %0, [%1];\n\t@!wide ld.global.s32 %0, [%1];\n\t}"
        : "=l"(value)
        : "l"(at), "r"(static_cast<int>(wide)));
    return value;
#else
    return (*this)[i];
#endif
  }
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

  // note: n and the row's numbers are all read before the first of them is used, so that one latency covers
  // them; a dead row's numbers are there, but not used

  /// What the embedder's numbers say, before the clamp.
  STEPGRAPH_HD std::int64_t raw(int row) const {
    const std::int64_t given = seq_lens.fetch(row);
    const std::int64_t added = delta + std::int64_t{delta_by_row ? delta_by_row[row] : 0};
    return given + added;
  }

  STEPGRAPH_HD std::int64_t length(int row) const {
    const std::int32_t n = *live_rows;
    const std::int64_t value = raw(row);
    const std::int64_t low = value < 0 && !guard_off("negative-length") ? 0 : value;
    const std::int64_t kept = low > cap ? cap : low;
    return (row < n || guard_off("pad-zero")) && row < rows ? kept : 0;
  }

  /// The same, reporting a length that had to be clamped.
  STEPGRAPH_HD std::int64_t length_reported(int row, const fault_sink& faults, op_id op) const {
    const std::int32_t n = *live_rows;
    const std::int64_t value = raw(row);
    if ((row >= n && !guard_off("pad-zero")) || row >= rows) return 0;
    if (value < 0 && guard_off("negative-length")) return value;
    return clamp_reported(value, 0, cap, faults, op, row, row_status::length_clamped);
  }
};

}  // namespace stepgraph
