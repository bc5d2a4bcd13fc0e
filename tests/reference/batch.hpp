#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/reference/output.hpp"

namespace stepgraph::reference {

/// What a row may be reported for.
enum class fault_kind {
  live_count,      // n outside [0, B]; row -1
  query_tokens,    // E outside [0, Emax]; value: E as given
  tokens_dropped,  // tokens past C; value: E after its clamp
  length,          // a length outside its range; value: the length before the clamp
  request_index,   // q outside the table; value: q
  column,          // an index past its array; value: the index
  slot,            // an entry of the request table that is negative or past pool or map; value: the entry
  page,            // a page entry that is negative or past map or cache; value: the entry
  start,           // a start outside [0, len]; value: the start
  capacity,        // entries past the output's capacity; value: the end of the row's entries
  line,            // a line outside a table; value: the line
  top_k,           // a top-k index past the table; value: the index
  window,          // a window that begins before the row's gathered tokens; value: those gathered
};

struct fault {
  fault_kind kind;
  std::int64_t row;
  std::int64_t value;
  bool operator==(const fault&) const = default;
};

/// Adds `f` unless it is there already.
void add_fault(std::vector<fault>& faults, const fault& f);

/// Those that an op shows that reads no query tokens.
std::vector<fault> without_tokens(const std::vector<fault>& faults);

/// Whether `row` was reported for `kind`.
bool has_fault(const std::vector<fault>& faults, fault_kind kind, std::int64_t row);

/// Where the KV slots of requests are looked up: one slot a token (`req_to_token`), or one page id a page. A
/// function stands for the table, so a wide one takes no memory.
struct page_source {
  bool page_granular = false;
  std::int64_t rows = 0;
  std::int64_t width = 0;       // columns: tokens, or pages where page-granular
  std::int64_t stride = 0;      // elements between lines of the table under test, >= width
  std::int64_t pool_pages = 0;  // an entry of this page or a later one is out of range; 0: none is
  std::function<std::int64_t(std::int64_t q, std::int64_t column)> entry;
};

/// A slot map or a page map; a negative entry means unmapped.
struct index_map {
  std::int64_t size = 0;
  std::function<std::int64_t(std::int64_t)> entry;
};

/// One ragged batch as the definitions have it, inputs as the embedder gives them: nothing is clamped yet,
/// and elements of dead rows hold anything.
struct batch {
  std::int64_t B = 0;     // rows captured
  std::int64_t C = 0;     // query tokens captured
  std::int64_t n = 0;     // live rows
  std::int64_t Emax = 1;  // most query tokens of a row
  std::int64_t P = 1;     // page size, tokens
  std::int64_t max_context = 0;
  std::int64_t page_columns = 0;       // pages a line of the page table holds
  std::vector<std::int64_t> E;         // [B]
  std::vector<std::int64_t> seq_lens;  // [B]
  std::vector<std::int64_t> q;         // [B] req_pool_indices
  std::int64_t delta = 0;
  std::vector<std::int64_t> delta_of;  // [B], instead of `delta` where not empty
  page_source source;
  std::optional<index_map> page_map;  // virtual page to physical page
  std::int64_t pool_pages = 0;  // pages of the KV pool, sink included: what maps and caches are sized by
  std::uint64_t seed = 0;       // of the generator, for messages

  /// Longest length: min(max_context, page_columns * P).
  std::int64_t cap() const;
  /// ceil(x / P).
  std::int64_t pages(std::int64_t x) const;
};

/// What follows from a batch alone. Vectors over rows are 0 for dead rows, those over tokens 0 for dead
/// tokens.
struct derived {
  std::int64_t n = 0;                  // live rows
  std::int64_t T = 0;                  // live tokens
  std::vector<std::int64_t> E;         // [B] query tokens, clamped to [0, Emax]
  std::vector<std::int64_t> kept;      // [B] those of them that lie before C
  std::vector<std::int64_t> len;       // [B]
  std::vector<std::int64_t> base;      // [B] len - E, may be negative
  std::vector<std::int64_t> cu_q;      // [B + 1] cumsum0(kept)
  std::vector<std::int64_t> row_of;    // [C]
  std::vector<std::int64_t> j;         // [C] the token's number in its row
  std::vector<std::int64_t> c;         // [C] causal length
  std::vector<std::int64_t> position;  // [C] of a chain
  std::vector<fault> faults;           // those that lengths and counts alone show
};

derived derive(const batch& in);

/// Looks slots and pages up as the notation has it. No value means nothing to point at: a request, or an entry,
/// outside its range, which is reported, or an unmapped one, which is not.
class slot_reader {
 public:
  slot_reader(const batch& in, std::vector<fault>& faults) : in_(in), faults_(faults) {}

  /// S(q[r], t), before any map.
  std::optional<std::int64_t> raw_slot(std::int64_t r, std::int64_t t);
  /// S(q[r], p * P) / P, before any map.
  std::optional<std::int64_t> raw_page(std::int64_t r, std::int64_t p);
  /// The slot as an output has it: through the page map, if there is one.
  std::optional<std::int64_t> slot(std::int64_t r, std::int64_t t);
  /// The page as an output has it.
  std::optional<std::int64_t> page(std::int64_t r, std::int64_t p);
  /// `map[index]` of an index just read; one past the map is reported by the entry that it came from.
  std::optional<std::int64_t> mapped(const index_map& map, std::optional<std::int64_t> index,
                                     std::int64_t row);

 private:
  std::optional<std::int64_t> entry(std::int64_t r, std::int64_t column);

  const batch& in_;
  std::vector<fault>& faults_;
  std::int64_t last_entry_ = 0;
};

/// The table as an embedder would hold it: [rows, stride], `padding` in the columns past its width.
template <class Element>
std::vector<Element> dense_table(const page_source& source, Element padding) {
  std::vector<Element> table(static_cast<std::size_t>(source.rows * source.stride), padding);
  for (std::int64_t q = 0; q < source.rows; ++q) {
    for (std::int64_t x = 0; x < source.width; ++x) {
      table[static_cast<std::size_t>(q * source.stride + x)] = static_cast<Element>(source.entry(q, x));
    }
  }
  return table;
}

template <class Element>
std::vector<Element> dense_map(const index_map& map) {
  std::vector<Element> table;
  for (std::int64_t i = 0; i < map.size; ++i) table.push_back(static_cast<Element>(map.entry(i)));
  return table;
}

}  // namespace stepgraph::reference
