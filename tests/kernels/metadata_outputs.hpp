#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "kernels/columns.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/page_source.hpp"
#include "tests/kernels/metadata_fixture.hpp"
#include "tests/reference/output.hpp"
#include "tests/test_device.hpp"

/// Outputs of metadata ops in poisoned memory with canaries after them, and their comparison with the
/// definitions: what is defined must agree, everything else must still be poison.
namespace stepgraph {

constexpr std::int32_t output_poison = -77;

template <class T>
class output_vector : public device_vector<T> {
 public:
  output_vector(stream_ref at, std::int64_t size)
      : device_vector<T>(at, size + 4, static_cast<T>(output_poison)) {}

  void expect(const reference::vector_output& want) const {
    const auto got = this->get();
    CHECK_MESSAGE(check_live(got, want).empty(), check_live(got, want));
    CHECK_MESSAGE(check_untouched(got, output_poison, want).empty(),
                  check_untouched(got, output_poison, want));
  }
};

/// `line` of an output that has one vector a step.
inline std::vector<std::int64_t> line_of(const std::vector<std::int64_t>& all, std::int64_t line,
                                         std::int64_t size) {
  return {all.begin() + line * size, all.begin() + (line + 1) * size};
}

inline tail_rule device_tail(const reference::tail_rule& tail) {
  return {static_cast<tail_mode>(tail.mode), static_cast<std::int32_t>(tail.multiple),
          static_cast<std::int32_t>(tail.value)};
}

class output_table : public device_vector<std::int32_t> {
 public:
  output_table(stream_ref at, std::int64_t lines, std::int64_t columns, std::int64_t extra_stride,
               const reference::output_rule& rule = {})
      : device_vector(at, lines * (columns + extra_stride) + 4, output_poison),
        stride_(columns + extra_stride) {
    sink = {data(), stride_, columns, static_cast<std::int32_t>(rule.skip), device_tail(rule.tail)};
  }

  void expect(const reference::table_output& want) const {
    const auto got = get();
    CHECK_MESSAGE(check_live(got, stride_, want).empty(), check_live(got, stride_, want));
    CHECK_MESSAGE(check_untouched(got, stride_, output_poison, want).empty(),
                  check_untouched(got, stride_, output_poison, want));
  }

  table_sink sink;

 private:
  std::int64_t stride_;
};

/// A map in device memory, of int32 or int64 entries.
class device_map {
 public:
  device_map(stream_ref at, const reference::index_map& map, bool wide)
      : narrow_(at, reference::dense_map<std::int32_t>(map)),
        wide_(at, reference::dense_map<std::int64_t>(map)) {
    view = wide ? index_map{wide_.data(), map.size} : index_map{narrow_.data(), map.size};
  }
  /// Other entries at the same place.
  void set(const reference::index_map& map) {
    narrow_.set(reference::dense_map<std::int32_t>(map));
    wide_.set(reference::dense_map<std::int64_t>(map));
  }
  index_map view;

 private:
  device_vector<std::int32_t> narrow_;
  device_vector<std::int64_t> wide_;
};

/// What a row gets that is reported for `kind`.
inline row_status status_of(reference::fault_kind kind) {
  using reference::fault_kind;
  switch (kind) {
    case fault_kind::live_count:
      return row_status::live_rows_clamped;
    case fault_kind::query_tokens:
    case fault_kind::tokens_dropped:
      return row_status::query_count_clamped;
    case fault_kind::length:
      return row_status::length_clamped;
    case fault_kind::request_index:
    case fault_kind::line:
      return row_status::request_out_of_range;
    case fault_kind::column:
    case fault_kind::slot:
    case fault_kind::page:
      return row_status::slot_out_of_range;
    case fault_kind::start:
      return row_status::start_clamped;
    case fault_kind::capacity:
      return row_status::capacity_exceeded;
    case fault_kind::top_k:
      return row_status::top_k_out_of_range;
    case fault_kind::window:
      return row_status::window_not_gathered;
  }
  return row_status::ok;
}

/// Each row has the status of one of its offences, which of them is a race, or none; the record holds `op` and
/// row, status and value of one of them all.
inline void expect_faults(op_id op, const fault_fixture& reports, const std::vector<reference::fault>& want) {
  const std::vector<row_status> status = reports.statuses();
  const fault_record record = reports.record();
  std::vector<std::vector<row_status>> allowed(status.size());
  bool is_one = want.empty() && record.status == 0;
  for (const reference::fault& f : want) {
    if (f.row >= 0) allowed.at(f.row).push_back(status_of(f.kind));
    is_one |= record.op == static_cast<std::int32_t>(op) && record.row == f.row && record.value == f.value &&
              record.status == static_cast<std::int32_t>(status_of(f.kind));
  }
  for (std::size_t r = 0; r < status.size(); ++r) {
    if (allowed[r].empty()) allowed[r].push_back(row_status::ok);
    CHECK_MESSAGE(std::ranges::find(allowed[r], status[r]) != allowed[r].end(), "row ", r, ": ",
                  to_string(status[r]), " instead of ", to_string(allowed[r][0]));
  }
  CHECK_MESSAGE(is_one, "the record is of ", to_string(op_id{record.op}), ", row ", record.row, ", ",
                to_string(row_status{record.status}), ", value ", record.value, ", none of ", want.size());
}

/// One of the tail options.
inline reference::tail_rule some_tail(int i) {
  if (i % 3 == 1) return {reference::tail_mode::multiple, i % 2 ? 4 : 3, -9};
  if (i % 3 == 2) return {reference::tail_mode::whole, 1, 5};
  return {};
}

/// Widths around a tile and far past it; the widest only where the definitions' loops are not all the time.
inline std::vector<std::int64_t> captured_widths() {
  std::vector<std::int64_t> widths{1, 63, 64, 65, 1000, 131072};
  if (!test_device().is_host() && !test_small()) widths.push_back(std::int64_t{1} << 20);
  return widths;
}

inline query_tokens device_query(const reference::batch& in, const device_batch& batch) {
  return {batch.query_counts(), false, static_cast<std::int32_t>(in.Emax), static_cast<std::int32_t>(in.C)};
}

}  // namespace stepgraph
