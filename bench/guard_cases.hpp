#pragma once

#include <cstdint>
#include <random>
#include <string>
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

/// `bar`: microseconds that it may take, 0 for none.
void print_timing(const std::string& name, const timing& t, double bar = 0);

/// What `bytes`, read and written, take at the bandwidth of a large copy.
double copy_us(stream_ref at, std::int64_t bytes);
void print_bytes(const timing& t, std::int64_t bytes, stream_ref at);

struct policy_times {
  std::string best;  // policy
  double best_us = 0;
};
/// Times the four policies, `by(policy, stream)`, on one op's inputs.
template <class By>
policy_times time_policies(stream_ref at, report& into, const std::string& name,
                           const nlohmann::json& parameters, std::int64_t bytes, const By& by) {
  policy_times result;
  for (const guard_policy policy : {guard_policy::full_width, guard_policy::early_exit,
                                    guard_policy::bounded_grid, guard_policy::block_a_row}) {
    const bool slow = policy == guard_policy::full_width || policy == guard_policy::early_exit;
    const timing t = time_chain(at, [&](stream_ref s) { by(policy, s); },
                                {.replays = slow ? 2 : 10, .count = slow ? 7 : 21});
    print_timing(to_string(policy), t);
    into.add(name + ", " + to_string(policy), parameters, t, bytes);
    if (result.best.empty() || t.median < result.best_us) result = {to_string(policy), t.median};
  }
  return result;
}

/// DSA, compressed attention and draft steps.
void run_other_ops(stream_ref at, report& into);

}  // namespace stepgraph::bench
