#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "tests/reference/batch.hpp"

namespace stepgraph::reference {

/// Seeded integers, the same on every platform.
class random_integers {
 public:
  explicit random_integers(std::uint64_t seed) : engine_(seed) {}
  /// In [0, count).
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(count));
  }
  /// In [first, last].
  std::int64_t between(std::int64_t first, std::int64_t last) { return first + below(last - first + 1); }
  bool one_in(std::int64_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 engine_;
};

struct random_batch_options {
  std::int64_t rows = 0;         // B; 0: 1 to 12
  std::int64_t live_rows = -1;   // n; -1: 0 to B
  std::int64_t max_tokens = -1;  // Emax; -1: 1 to 6
  std::int64_t page_size = 0;    // P; 0: a power of two from 1 to 64
  std::int64_t max_context = 0;  // 0: 1 to 8 pages, edge or not
  // where set, rows are no longer than this, or of the full width: keeps a batch of a wide table quick
  std::int64_t length_limit = 0;
  // leaves room in each row, and live columns, for lengths up to seq_lens + this
  std::int64_t draft_steps = 0;
  bool full_width = true;       // some rows have the longest length
  std::int64_t page_group = 1;  // this many pages stay contiguous and aligned (pooled keys)
  bool equal_tokens = false;    // every live E is Emax: a rectangle
  bool page_granular = false;
  bool page_map = false;
  bool poison = false;       // wild values in dead rows and dead columns
  bool bad_request = false;  // some live q outside the table
  bool bad_length = false;   // some live lengths negative or past cap
  bool bad_tokens = false;   // some live E outside [0, Emax]
  bool bad_slot = false;     // some live table entries negative, at the pool's end, or past every map
  bool drop_tokens = false;  // C smaller than the tokens there are
};

/// A ragged batch, whose source at times knows its pool's end: lengths 0, 1, at page edges and at full width; E of 0; fresh rows with len < E. Live rows
/// have distinct requests and distinct slots (as long as all pages fit in 2^31 slots).
batch random_batch(std::uint64_t seed, const random_batch_options& options = {});

/// Seed and shape, for messages.
std::string describe(const batch& in);

/// A slot map of the batch's pool to a window pool: pages stay whole, some are unmapped, the sink stays.
index_map random_slot_map(const batch& in, std::uint64_t seed);

/// The same by pages.
index_map random_page_map(std::int64_t pages, std::uint64_t seed);

}  // namespace stepgraph::reference
