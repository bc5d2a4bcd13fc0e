#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "bench/guard_comparators.hpp"
#include "bench/report.hpp"
#include "graphs/memory_resource.hpp"
#include "graphs/stream.hpp"

namespace stepgraph::bench {

/// A vector in device memory, made from host values.
template <class T>
class device_array {
 public:
  device_array(stream_ref at, std::int64_t size)
      : size_(size), block_(device_memory(at.where()), size * sizeof(T) + 16) {
    fill(at);
  }
  device_array(stream_ref at, const std::vector<T>& values)
      : device_array(at, static_cast<std::int64_t>(values.size())) {
    at.copy(block_.data(), values.data(), values.size() * sizeof(T));
    at.synchronize();
  }
  T* data() const { return block_.as<T>(); }
  void fill(stream_ref at) const { at.fill(block_.data(), 0x5a, size_ * sizeof(T)); }
  std::vector<T> get(stream_ref at) const {
    std::vector<T> values(size_);
    at.copy(values.data(), block_.data(), size_ * sizeof(T));
    at.synchronize();
    return values;
  }

 private:
  std::int64_t size_;
  buffer block_;
};

struct decode_shape {
  int page_shift;
  std::int64_t width;  // tokens captured
  int rows;
  std::int64_t live;  // tokens of each row
  double bar;         // microseconds that a node may take, 0: none
};

/// Those of the speed table.
const std::vector<decode_shape>& decode_shapes();

/// A request table of random slots whose pages are whole.
std::vector<std::int32_t> random_slots(int requests, std::int64_t width, int page_shift);

/// What decode metadata reads and writes at one shape.
struct decode_inputs {
  decode_inputs(stream_ref at, const decode_shape& s)
      : shape(s),
        live_rows(at, std::vector<std::int32_t>{s.rows}),
        seq_lens(at, std::vector<std::int64_t>(s.rows, s.live)),
        requests(at, reversed(s.rows)),
        source(at, random_slots(s.rows, s.width, s.page_shift)),
        cache_seqlens(at, s.rows),
        cu_seqlens_k(at, s.rows + 1),
        table(at, s.rows * columns()) {}

  std::int64_t columns() const { return pages_of(shape.width, shape.page_shift); }
  /// Entries read and pages written, 4 bytes each; a page's entry alone in its 32-byte sector counts as one.
  std::int64_t bytes() const {
    return shape.rows * pages_of(shape.live, shape.page_shift) * (shape.page_shift >= 3 ? 36 : 8);
  }
  row_lengths lengths() const {
    return {
        .live_rows = live_rows.data(), .rows = shape.rows, .seq_lens = seq_lens.data(), .cap = shape.width};
  }
  page_source pages() const {
    return {.table = source.data(),
            .row_stride = shape.width,
            .requests = shape.rows,
            .columns = shape.width,
            .page_shift = shape.page_shift};
  }
  decode_metadata_params params() const {
    return {.lengths = lengths(),
            .requests = requests.data(),
            .source = pages(),
            .cache_seqlens = cache_seqlens.data(),
            .cu_seqlens_k = cu_seqlens_k.data(),
            .page_table = table.data(),
            .page_table_stride = columns(),
            .page_columns = columns()};
  }
  static std::vector<std::int64_t> reversed(int rows) {
    std::vector<std::int64_t> out;
    for (int r = rows - 1; r >= 0; --r) out.push_back(r);
    return out;
  }

  decode_shape shape;
  device_array<std::int32_t> live_rows;
  device_array<std::int64_t> seq_lens, requests;
  device_array<std::int32_t> source, cache_seqlens, cu_seqlens_k, table;
};

/// DSA, compressed attention and draft steps.
void run_other_ops(stream_ref at, report& into);

}  // namespace stepgraph::bench
